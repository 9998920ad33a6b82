"""The command line: everything a person asks of the worker outside its container's life."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from worker import packages

ROOT = Path(__file__).resolve().parents[1]
# As shells have it: 128 and the number of SIGINT.
INTERRUPTED = 130
GENERATED = (ROOT / "README.md", ROOT / "docs" / "figures.md")


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
    commands.add_parser("bake", help="compile a model's kernels once, for every later worker (needs a GPU)")
    commands.add_parser("patches", help="check the patch queue")
    readme = commands.add_parser("readme", help="write the generated blocks of README.md and docs/figures.md anew")
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
    serve.add_argument("--port", default="", help="port of the local queue (default: 8000); 0 takes a free one")
    serve.set_defaults(run=_local_serve)
    standalone = modes.add_parser("standalone", help="serve every API on one port, as the image does when told: local")
    standalone.set_defaults(run=_local_standalone)
    for command in (run, serve):
        text = "what to serve: a name, a path to a GGUF or a folder of them, an s3:// URL (default: a small chat model)"
        command.add_argument("--model", default="", help=text)


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
    transfer = kinds.add_parser("transfer", help="a download in ranges against what the connection can give")
    transfer.add_argument("--rounds", type=int, default=3)
    transfer.set_defaults(run=_bench_transfer)
    for kind in (proxy, landing, transfer):
        kind.add_argument("--out", type=Path, default=None, help="folder for the result")
    soak = kinds.add_parser("soak", help="minutes of mixed work, and then whether the worker is what it was before")
    soak.add_argument("--minutes", type=float, default=10.0)
    soak.add_argument("--jobs", type=int, default=10_000, help="how many instant jobs the memory is watched over")
    soak.add_argument("--out", type=Path, default=None, help="folder for the result")
    soak.set_defaults(run=_bench_soak)
    _add_cold_start(kinds.add_parser("cold-start", help="from a stock start to this worker's, step by step"))


def _add_cold_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="how often each step is measured")
    parser.add_argument("--out", type=Path, default=None, help="folder for result, picture and raw event streams")
    parser.add_argument("--models", type=Path, default=None, help="an Ollama store to load from; else a small model")
    parser.add_argument("--model", default="", help="which of its models, as Ollama names it")
    parser.add_argument("--rungs", nargs="+", default=None, help="only these steps, as stock structure landing")
    parser.add_argument("--cold", action="store_true", help="take the model out of the page cache before each run")
    parser.add_argument("--landing-dir", type=Path, default=None, help="folder for landed copies")
    parser.add_argument("--volume-latency-us", type=int, default=0, help="put the store behind FUSE with this latency")
    parser.add_argument("--jit", choices=("direct", "mirror"), default="direct", help="how compiled kernels are kept")
    parser.add_argument("--backend", default="", help="a CUDA backend to take instead of the best, as in cuda_v13")
    parser.set_defaults(run=_bench_cold_start)


def _timeline(arguments: list[str]) -> int:
    from worker.timeline.cli import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments)


def _check(arguments: list[str]) -> int:
    from worker.check import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments, os.environ)


def _models(arguments: list[str]) -> int:
    from worker.models_command import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments, os.environ)


def _bake(arguments: list[str]) -> int:
    from worker.bake import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments, os.environ)


def _patches(arguments: list[str]) -> int:
    from worker.patches.command import main as run  # noqa: PLC0415 - each command loads only its own

    return run(arguments)


def _readme(_: argparse.Namespace) -> int:
    from worker import readme  # noqa: PLC0415 - each command loads only its own

    for page in GENERATED:
        before = page.read_text(encoding="utf-8")
        after = readme.refreshed(before, ROOT / "bench" / "results")
        page.write_text(after, encoding="utf-8")
        sys.stdout.write(f"{page.name}: {'written anew' if after != before else 'nothing to change'}\n")
    return 0


def _local_run(options: argparse.Namespace) -> int:
    from worker.local import demo  # noqa: PLC0415 - development packages, not in the image

    return demo.run(options.ask or demo.QUESTION, options.model)


def _local_serve(options: argparse.Namespace) -> int:
    from worker.local import demo  # noqa: PLC0415 - development packages, not in the image

    return demo.serve(options.port, options.model)


def _local_standalone(_: argparse.Namespace) -> int:
    from worker.local import standalone  # noqa: PLC0415 - each command loads only its own

    return standalone.main()


def _bench_boot(options: argparse.Namespace) -> int:
    from bench import boot  # noqa: PLC0415 - development packages, not in the image

    return boot.run(options.rounds, options.out)


def _bench_proxy(options: argparse.Namespace) -> int:
    from bench import proxy  # noqa: PLC0415 - development packages, not in the image

    return proxy.run(options.out, rounds=options.rounds, jobs=options.jobs)


def _bench_landing(options: argparse.Namespace) -> int:
    from bench import landing  # noqa: PLC0415 - development packages, not in the image

    return landing.run(options.out, rounds=options.rounds, which=options.only or landing.GROUPS)


def _bench_transfer(options: argparse.Namespace) -> int:
    from bench import transfer  # noqa: PLC0415 - development packages, not in the image

    return transfer.run(options.out, rounds=options.rounds)


def _bench_soak(options: argparse.Namespace) -> int:
    from bench import soak  # noqa: PLC0415 - development packages, not in the image

    return soak.run(options.out, minutes=options.minutes, jobs=options.jobs)


def _bench_cold_start(options: argparse.Namespace) -> int:
    from bench.cold_start import report, rungs  # noqa: PLC0415 - development packages, not in the image
    from bench.cold_start.options import Options  # noqa: PLC0415 - same

    return report.run(
        Options(
            runs=options.runs,
            out=options.out,
            models=options.models,
            model=options.model,
            which=tuple(options.rungs or rungs.NAMES),
            landing_dir=options.landing_dir,
            latency_us=options.volume_latency_us,
            cold=options.cold,
            jit=options.jit,
            backend=options.backend,
        )
    )


def _interrupted() -> int:
    """End what is left of what was started: the keys may have been pressed while something was being started."""
    from worker.local import descendants  # noqa: PLC0415 - each command loads only its own

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descendants.end(os.getpid())
    sys.stderr.write("\nInterrupted; nothing is left running.\n")
    return INTERRUPTED


_HANDED_ON: dict[str, Callable[[list[str]], int]] = {
    "bake": _bake,
    "check": _check,
    "models": _models,
    "timeline": _timeline,
    "patches": _patches,
}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_interrupted())
    except ModuleNotFoundError as exc:
        sys.exit(packages.missing(exc))
