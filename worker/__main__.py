"""The command line: everything a person asks of the worker outside its container's life."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    # These read their own arguments, so that their --help is their own too.
    if name in _HANDED_ON:
        return _HANDED_ON[name](arguments[1:])
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("timeline", help="where the seconds of a cold start went, from a log")
    commands.add_parser("check", help="what this worker would do here and why; whether it can serve these GPUs")
    commands.add_parser("models", help="list, pull, register, verify and prune the models of the store")
    commands.add_parser("patches", help="check the patch queue")
    readme = commands.add_parser("readme", help="write the generated blocks of README.md anew")
    readme.set_defaults(run=_readme)
    _add_local(commands.add_parser("local", help="run everything on this machine (development)"))
    _add_bench(commands.add_parser("bench", help="measure, as ratios taken in one run"))
    return parser


def _add_local(parser: argparse.ArgumentParser) -> None:
    modes = parser.add_subparsers(required=True, metavar="MODE")
    run = modes.add_parser("run", help="answer one question and show the timeline")
    run.add_argument("--ask", default="", help="the question")
    run.set_defaults(run=_local_run)
    serve = modes.add_parser("serve", help="keep a queue and a worker running")
    serve.add_argument("--port", type=int, default=8000, help="port of the local queue; 0 takes a free one")
    serve.set_defaults(run=_local_serve)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    boot = kinds.add_parser("boot", help="container start to first chunk, against the floor and the stock order")
    boot.add_argument("--rounds", type=int, default=5)
    boot.add_argument("--out", type=Path, default=None, help="folder for the result and the raw event streams")
    boot.set_defaults(run=_bench_boot)
    proxy = kinds.add_parser("proxy", help="tokens through the worker against tokens from the server alone")
    proxy.add_argument("--rounds", type=int, default=5)
    proxy.add_argument("--jobs", type=int, default=10_000, help="how many jobs the memory is watched over")
    proxy.set_defaults(run=_bench_proxy)
    landing = kinds.add_parser("landing", help="a model landed on local disk against llama.cpp reading it in place")
    landing.add_argument("--rounds", type=int, default=3)
    landing.add_argument("--only", nargs="+", default=None, help="only these groups of cases")
    landing.set_defaults(run=_bench_landing)
    for kind in (proxy, landing):
        kind.add_argument("--out", type=Path, default=None, help="folder for the result")


def _timeline(arguments: list[str]) -> int:
    from worker.timeline.cli import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments)


def _check(arguments: list[str]) -> int:
    from worker.check import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments, os.environ)


def _models(arguments: list[str]) -> int:
    from worker.models_command import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments, os.environ)


def _patches(arguments: list[str]) -> int:
    from worker.patches.command import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments)


def _readme(_: argparse.Namespace) -> int:
    from worker import readme  # noqa: PLC0415 - each command loads only its own

    before = README.read_text(encoding="utf-8")
    after = readme.refreshed(before, ROOT / "bench" / "results")
    README.write_text(after, encoding="utf-8")
    sys.stdout.write("README.md: " + ("written anew\n" if after != before else "nothing to change\n"))
    return 0


def _local_run(options: argparse.Namespace) -> int:
    from worker.local import demo  # noqa: PLC0415 - development packages, not in the image

    return demo.run(options.ask or demo.QUESTION)


def _local_serve(options: argparse.Namespace) -> int:
    from worker.local import demo  # noqa: PLC0415 - development packages, not in the image

    return demo.serve(options.port)


def _bench_boot(options: argparse.Namespace) -> int:
    from bench import boot  # noqa: PLC0415 - development packages, not in the image

    return boot.run(options.rounds, options.out)


def _bench_proxy(options: argparse.Namespace) -> int:
    from bench import proxy  # noqa: PLC0415 - development packages, not in the image

    return proxy.run(options.out, rounds=options.rounds, jobs=options.jobs)


def _bench_landing(options: argparse.Namespace) -> int:
    from bench import landing  # noqa: PLC0415 - development packages, not in the image

    return landing.run(options.out, rounds=options.rounds, which=options.only or landing.GROUPS)


_HANDED_ON: dict[str, Callable[[list[str]], int]] = {
    "check": _check,
    "models": _models,
    "timeline": _timeline,
    "patches": _patches,
}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith(("worker", "bench")):
            raise
        sys.exit(
            f"The Python package {exc.name!r} is missing: run `make run` once, then use .venv/bin/python -m worker"
        )
