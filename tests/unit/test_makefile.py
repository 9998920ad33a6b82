"""What `make` hands on: a person's words as they are, and a run that cannot be as a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make")
TEXTS = [
    "$HOME and `id`",
    "'single' and \"double\"",
    "$$ $(HOME) ${HOME} $(shell touch made) \\ # ! %",
    "-x --y",
    "two\nlines",
    "",
]
pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")


def venv(folder: Path) -> Path:
    """Return a virtual environment that is installed already, and whose Python tells its arguments, one a line."""
    program = folder / "venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    program.chmod(0o755)
    (folder / "venv" / "local.installed").touch()
    return folder / "venv"


def make(target: str, folder: Path, *variables: str, **environ: str) -> list[str]:
    done = subprocess.run(
        [str(MAKE), "--no-print-directory", "-C", str(ROOT), target, f"VENV={venv(folder)}", *variables],
        env={"PATH": os.environ["PATH"], "HOME": "/somewhere", **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("text", TEXTS)
def test_a_question_and_a_model_are_taken_literally(tmp_path: Path, text: str) -> None:
    expected = ["-m", "worker", "local", "run", f"--ask={text}", f"--model={text}"]
    assert make("run", tmp_path / "given", f"ASK={text}", f"MODEL={text}") == expected
    assert make("run", tmp_path / "exported", ASK=text, MODEL=text) == expected
    assert not (ROOT / "made").exists()


@pytest.mark.parametrize("text", ["8001", "", "abc", "`id`", "$HOME"])
def test_a_port_is_taken_literally(tmp_path: Path, text: str) -> None:
    expected = ["-m", "worker", "local", "serve", f"--port={text}", "--model="]
    assert make("serve", tmp_path, f"PORT={text}") == expected


def test_nothing_given_is_nothing_handed_on(tmp_path: Path) -> None:
    assert make("run", tmp_path / "run")[-2:] == ["--ask=", "--model="]
    assert make("serve", tmp_path / "serve")[-2:] == ["--port=", "--model="]


@pytest.mark.parametrize("source", ["", "/no/such/folder"])
def test_image_tests_that_cannot_run_are_a_failure_that_says_what_is_missing(source: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/image"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "IMAGE_TEST": "1", "OLLAMA_SRC": source},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stderr.strip() == (
        "ERROR: the image was not tested: name Ollama's source of the release in patches/UPSTREAM, "
        "as in make image-test OLLAMA_SRC=/path"
    )
    assert "skipped" not in done.stdout
