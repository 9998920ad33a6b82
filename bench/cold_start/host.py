"""What this machine can show of a cold start: its server, its devices, and what a process may inherit from here."""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.cold_start.rungs import Host
from bench.cold_start.store import ColdStore
from worker import backend, choice, gpu, launch
from worker.environment import FIT_VARIABLE, THREADS_VARIABLE
from worker.local.process import server_command

# What makes devices visible in a container; everything else of this shell stays out of the runs.
_OF_DEVICES = ("NVIDIA_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH")


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this shell that a run needs to see the devices."""
    return {name: value for name, value in environ.items() if name.startswith(_OF_DEVICES)}


def without(variables: Sequence[str], command: str, folder: Path) -> str:
    """Return a command that starts `command` without `variables`, whoever sets them.

    It is a program below `folder` with the server's libraries where the worker looks for them: beside it.
    """
    if not variables:
        return command
    program = folder / "bin" / "ollama"
    program.parent.mkdir(parents=True)
    dropped = [part for name in variables for part in ("-u", name)]
    program.write_text(f"#!/bin/sh\nexec {shlex.join(['env', *dropped, *shlex.split(command)])}\n", encoding="utf-8")
    program.chmod(0o755)
    libraries = launch.prepare({"PATH": os.environ.get("PATH", ""), "WORKER_SERVER_COMMAND": command}).libraries
    if libraries is not None:
        (folder / "lib").mkdir()
        (folder / "lib" / "ollama").symlink_to(libraries)
    return str(program)


def is_ollama() -> bool:
    """Whether the server is an Ollama and not the local engine."""
    return "worker.local.engine" not in server_command()


def devices(environ: Mapping[str, str]) -> str:
    """Return the devices and the driver, for a result; empty without a device."""
    found = gpu.detect(environ)
    names = ", ".join(str(device) for device in found.devices)
    return f"{names}, driver {found.driver}" if names else ""


def look(environ: Mapping[str, str], store: ColdStore, requested: str = "", *, landing: bool) -> Host:
    """Return what decides which rungs can be measured; `landing` says that a folder for copies was named."""
    here = {"PATH": environ.get("PATH", ""), "WORKER_SERVER_COMMAND": server_command(), **inherited(environ)}
    started = launch.prepare(here)
    gpu_reason, outcome = _backend(here, started.libraries, requested)
    told = {setting.name for setting in started.settings} & {FIT_VARIABLE, THREADS_VARIABLE}
    return Host(
        server="this Ollama" if is_ollama() else "the local engine",
        knows=_knows,
        projector=store.projector,
        gpu=gpu_reason,
        outcome=outcome,
        runner="" if told else "the worker tells the runner neither here",
        store="" if store.distant or landing else "the store is local: there is nothing to land",
    )


def _backend(environ: Mapping[str, str], libraries: Path | None, requested: str) -> tuple[str, str]:
    """Return why no CUDA backend can be chosen, or the outcome of the one that is."""
    found = gpu.detect(environ)
    if not found.devices:
        return "no NVIDIA device is visible", ""
    backends = backend.find(libraries) if libraries is not None else []
    if not backends:
        return "the server has no CUDA backend", ""
    chosen = choice.choose(backends, found, requested)
    return (chosen.reason, "") if chosen.outcome == "unusable" else ("", chosen.outcome)


def _knows(variable: str) -> bool:
    """Return whether the server's program carries the name of a variable, which only the patches bring into it."""
    program = shutil.which(shlex.split(server_command())[0])
    if program is None or not is_ollama():
        return False
    with Path(program).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(variable.encode()) >= 0
