"""`python -m worker check`: what this worker would do here, why, and whether the image can serve these GPUs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker import backend, choice, config, go_values, gpu
from worker.device import Found
from worker.environment import BACKEND_VARIABLE, Setting, Unset, ignored
from worker.errors import ConfigInvalid
from worker.gpu_report import GpuReport, make_report, render_table
from worker.launch import Launch, prepare

TAKE_VARIABLE = "RUNPOD_WEBHOOK_GET_JOB"
_SERVERS = ("OLLAMA_", "LLAMA_ARG_", "GGML_", "CUDA_")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the check of this machine, or with --targets that of an image being built; return 1 for problems."""
    parser = argparse.ArgumentParser(prog="python -m worker check", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--libraries", type=Path, help="the server's library directory; default: beside the server")
    parser.add_argument("--targets", default="", help='compute capabilities the image is for, as in "8.0 9.0"')
    parser.add_argument("--variants", default="", help="only these backends, as in cuda_v12")
    options = parser.parse_args(argv)
    if options.targets:
        return _image(options)
    return _machine(options, environ)


def _image(options: argparse.Namespace) -> int:
    """Judge libraries against declared targets; no device and no driver is needed."""
    backends, problems = _backends(options.libraries, options)
    problems += choice.missing_targets(backends, options.targets.split())
    report = make_report(backends, Found((), None, "an image being built"))
    if options.json:
        _print(json.dumps({"backends": report.to_dict()["backends"], "problems": problems}, indent=2))
    else:
        _print(render_table(report).partition("\n\nOllama")[0])
        _print("\n".join(f"problem: {p}" for p in problems) or f"native code for {options.targets}: yes")
    return 1 if problems else 0


def _machine(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    problems: list[str] = []
    cpu_allowed = False
    launch: Launch | None = None
    try:
        launch = prepare(environ)
        # Outside Runpod nobody sets where jobs come from, and that is no mistake here.
        loaded = config.load({TAKE_VARIABLE: "none", **environ})
        cpu_allowed = loaded.allow_cpu
    except ConfigInvalid as exc:
        problems.append(exc.message)
    backends, missing = _backends(options.libraries or (launch.libraries if launch else None), options)
    problems += missing
    report = make_report(backends, gpu.detect(environ), environ.get(BACKEND_VARIABLE, "").strip())
    if report.choice.outcome == "unusable" and not cpu_allowed:
        problems.append(report.choice.reason)
    if options.json:
        _print(json.dumps(_to_dict(report, launch, environ, problems), indent=2))
    else:
        _print(render_table(report))
        _print(
            "\n" + _settings_table([*launch.settings, *_passed_on(launch, environ), *launch.unset] if launch else [])
        )
        _print("\n" + "".join(f"note: {note}\n" for note in ignored(environ)), end="")
        _print("\n".join(f"problem: {p}" for p in problems) or "no problem found")
    return 1 if problems else 0


def _backends(libraries: Path | None, options: argparse.Namespace) -> tuple[list[backend.Backend], list[str]]:
    """Return the backends in `libraries` that are asked for, and a sentence for each thing that is not there."""
    if options.libraries and not options.libraries.is_dir():
        return [], [f"{libraries} is no folder: --libraries is the server's, as /usr/lib/ollama"]
    found = backend.find(libraries) if libraries is not None and libraries.is_dir() else []
    wanted = options.variants.split()
    there = f"in {libraries} there is {', '.join(b.name for b in found) or 'no backend'}"
    if libraries is None:
        there = "there are no libraries beside a server here: name them with --libraries"
    missing = [f"{name} is not there: {there}" for name in wanted if name not in {b.name for b in found}]
    return [b for b in found if not wanted or b.name in wanted], missing


def _to_dict(
    report: GpuReport, launch: Launch | None, environ: Mapping[str, str], problems: list[str]
) -> dict[str, Any]:
    return {
        "gpu": report.to_dict(),
        "command": launch.argv if launch else None,
        "server": [vars(s) for s in [*launch.settings, *_passed_on(launch, environ)]] if launch else [],
        "unset": [unset._asdict() for unset in launch.unset] if launch else [],
        "notes": ignored(environ),
        "problems": problems,
    }


def _passed_on(launch: Launch, environ: Mapping[str, str]) -> list[Setting]:
    """Return the server's and the runner's variables that are the user's alone: the worker has no opinion on them."""
    told = {setting.name for setting in launch.settings}
    return [
        Setting(name, "(hidden)" if name.endswith(_SECRET) else value, _standing(name, value), from_user=True)
        for name, value in sorted(environ.items())
        if name.startswith(_SERVERS) and name not in told and value.strip()
    ]


def _standing(name: str, value: str) -> str:
    wrong = go_values.fault(name, value)
    return f"set by you, and ignored: {wrong}" if wrong else "set by you"


def _settings_table(settings: Sequence[Setting | Unset]) -> str:
    shown = [f"{s.name}={s.value}" if isinstance(s, Setting) else f"{s.name} (not set)" for s in settings]
    width = max(map(len, shown), default=0)
    return "\n".join(f"{text.ljust(width)}  {s.reason}" for text, s in zip(shown, settings, strict=True))


def _print(text: str, *, end: str = "\n") -> None:
    sys.stdout.write(text + end)
