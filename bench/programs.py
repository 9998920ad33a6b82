"""Programs a measurement needs beside it: compiled from their C source, started, and ended by their own process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

READY_LIMIT_S = 60.0
END_LIMIT_S = 20.0


class Unavailable(Exception):
    """This machine cannot run the measurement; the message says what is missing."""


def require(*commands: str) -> None:
    """Raise Unavailable unless every one of `commands` is installed."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        raise Unavailable(f"{', '.join(missing)} not installed")


def compile_c(source: Path, target: Path, package: str | None = None) -> Path:
    """Compile one C file, with the flags pkg-config knows for `package`; raise Unavailable without what it needs."""
    require("cc", *(["pkg-config"] if package else []))
    flags: list[str] = []
    if package is not None:
        asked = subprocess.run(["pkg-config", "--cflags", "--libs", package], capture_output=True, text=True)  # noqa: S607, PLW1510 - the machine's own; judged below
        if asked.returncode:
            raise Unavailable(f"the headers of {package} are not installed")
        flags = asked.stdout.split()
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(source), *flags, "-pthread"]
    subprocess.run(command, check=True, timeout=READY_LIMIT_S)
    return target


def start_ready(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program that prints "ready" as its first line; raise Unavailable when it ends instead.

    It is not reached by the Ctrl-C of the terminal: whoever started it ends it, in the right order.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    ready = False
    try:
        ready = process.stdout is not None and process.stdout.readline().strip() == "ready"
    finally:
        if not ready:
            end(process)
    if not ready:
        raise Unavailable(f"{Path(command[0]).name} does not start here")
    return process


@contextmanager
def beside(module: str, *arguments: str) -> Iterator[str]:
    """Run a Python module beside the measurement until the context ends; yield the first line it prints.

    Its standard input ends with this process. Ctrl-C at the terminal does not reach it: it ends with the context.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            if not line:
                raise RuntimeError(f"{module} ended before it was ready")
            yield line.rstrip("\n")
        finally:
            process.terminate()


def end(process: subprocess.Popen[str]) -> None:
    """Terminate a program, by force when it does not go, and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait(END_LIMIT_S)
    if process.stdout is not None:
        process.stdout.close()
