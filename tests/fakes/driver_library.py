"""The stand-in for the driver's library, compiled: put its directory into LD_LIBRARY_PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

COMPILER = shutil.which("cc")
SOURCE = Path(__file__).with_name("fakenvml.c")
FLAGS = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1")


def build(directory: Path) -> Path:
    """Compile the stand-in into `directory` and return that."""
    directory.mkdir(exist_ok=True)
    argv = [str(COMPILER), *FLAGS, "-o", str(directory / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(argv, check=True, timeout=60)
    return directory
