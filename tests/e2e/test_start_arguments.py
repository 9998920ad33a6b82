"""start.sh with a word it does not know, and with a Python that has no packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FAKE, Marked
from worker.local.process import ROOT, free_port

LIMIT_S = 60.0


def start(folder: Path, marked: Marked, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHON": sys.executable,
        "OLLAMA_HOST": f"127.0.0.1:{free_port()}",
        "WORKER_SERVER_COMMAND": FAKE,
        "WORKER_VOLUME": str(folder / "volume"),
    }
    return subprocess.run(
        [str(ROOT / "start.sh"), *arguments],
        env={**environ, **marked.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["locla"], ["--local"], ["local", "8000"], [""]])
def test_an_argument_it_does_not_know_starts_nothing(tmp_path: Path, marked: Marked, arguments: list[str]) -> None:
    done = start(tmp_path, marked, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"start.sh: unknown argument '{' '.join(arguments)}': did you mean 'local'? "
        "Without an argument it takes Runpod's jobs\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "package", "prefix"),
    [(["local"], "aiohttp", ""), ([], "pydantic", "worker: ")],
    ids=["local", "jobs"],
)
def test_a_python_without_packages_is_told_in_one_sentence(
    tmp_path: Path, marked: Marked, arguments: list[str], package: str, prefix: str
) -> None:
    bare = tmp_path / "python"
    # Without its site, whatever is installed there is not found.
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    done = start(tmp_path, marked, *arguments, PYTHON=str(bare))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"{prefix}The Python package '{package}' is missing: run `make run` once, then use "
        ".venv/bin/python -m worker, or PYTHON=.venv/bin/python ./start.sh"
    )
    assert "Traceback" not in done.stderr
