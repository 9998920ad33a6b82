"""Kernels baked by the command a person types, on a machine whose driver and GPU are stand-ins."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MODEL, Marked
from tests.fakes.cuda_image import driver_library, install
from tests.fakes.cuda_library import ptx
from worker import artifact
from worker.local.process import ROOT, free_port

LIMIT_S = 90.0
COMPILER = shutil.which("cc")
L4 = "NVIDIA L4,8.9,23034"


@pytest.fixture
def environ(tmp_path: Path, store_home: Path, marked: Marked) -> dict[str, str]:
    program = install(tmp_path / "image", {"cuda_v12": [ptx("89")]})
    return {
        **marked.environ,
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "WORKER_SERVER_COMMAND": shlex.join([str(program), "serve"]),
        "WORKER_VOLUME": str(tmp_path / "volume"),
        "OLLAMA_MODELS": str(store_home / "models"),
        "OLLAMA_MODEL": MODEL,
        "OLLAMA_HOST": f"127.0.0.1:{free_port()}",
        "FAKE_COMPILED_BYTES": "100000",
    }


def bake(environ: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "worker", "bake", *argv]
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler for the stand-in driver library")
def test_on_a_gpu_the_kernels_of_this_driver_are_packed(environ: dict[str, str], tmp_path: Path) -> None:
    library = driver_library(tmp_path / "driver", str(COMPILER))
    devices = {"FAKE_NVML_DEVICES": L4, "FAKE_NVML_DRIVER": "570.86.15", "FAKE_NVML_CUDA": "12080"}
    # The fake server takes every FAKE_* for a knob of its own.
    kept_back = " ".join(f"-u {name}" for name in devices)
    program = tmp_path / "image" / "bin" / "ollama"
    program.write_text(program.read_text().replace("exec ", f"exec env {kept_back} "))
    done = bake({**environ, **devices, "LD_LIBRARY_PATH": str(library)}, "--out", str(tmp_path / "kernels"))
    assert done.returncode == 0, done.stderr
    (packed,) = (tmp_path / "kernels").iterdir()
    about = artifact.inspect(packed).about
    assert (about["capability"], about["driver"]) == ("8.9", "570.86.15")
    assert about["engine"].startswith("cuda_v12-")
    assert str(packed) in done.stdout


def test_without_a_gpu_one_sentence_says_what_is_missing(environ: dict[str, str]) -> None:
    # No device is visible to CUDA, whatever the machine has.
    done = bake({**environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert "none is visible here" in sentence
