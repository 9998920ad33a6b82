"""An Ollama installation with CUDA backends and no Ollama: the fake server, and libraries that are made up."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.fakes.cuda_library import library
from worker.environment import BACKEND_FILE

FAKES = Path(__file__).resolve().parent


def install(root: Path, backends: Mapping[str, Sequence[bytes]]) -> Path:
    """Lay out `bin` and `lib` below `root`, a backend for each name with one module of its entries; return the program.

    The program starts as `ollama serve` does and takes the knobs of the fake server.
    """
    program = root / "bin" / "ollama"
    program.parent.mkdir(parents=True)
    command = shlex.join([sys.executable, str(FAKES / "server.py")])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    for name, entries in backends.items():
        directory = root / "lib" / "ollama" / name
        directory.mkdir(parents=True)
        (directory / BACKEND_FILE).write_bytes(library(entries))
    return program


def driver_library(directory: Path, compiler: str) -> Path:
    """Compile the stand-in for NVIDIA's management library into `directory`, for LD_LIBRARY_PATH; return that."""
    directory.mkdir(parents=True)
    flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(directory / "libnvidia-ml.so.1")]
    subprocess.run([compiler, *flags, str(FAKES / "fakenvml.c")], check=True, timeout=60)
    return directory
