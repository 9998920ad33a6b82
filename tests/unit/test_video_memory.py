"""Free video memory as the driver's library tells it, asked through a compiled stand-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.driver_library import COMPILER, build

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler for the stand-in driver library")

PROGRAM = """
from worker.device import Unanswered
from worker.video_memory import free_bytes
try:
    print(free_bytes())
except Unanswered as exc:
    print(exc)
import sys
assert "pynvml" not in sys.modules
"""
H100 = "NVIDIA H100 80GB HBM3,9.0,81559"
L4 = "NVIDIA L4,8.9,23034"
MIB = 1 << 20


@pytest.fixture(scope="module")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


def answer(library: Path, **environ: str) -> str:
    """Ask in a process of its own: a loaded library stays."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": "", "LD_LIBRARY_PATH": str(library), **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_what_others_use_is_not_free(driver_library: Path) -> None:
    free = answer(driver_library, FAKE_NVML_DEVICES=H100, FAKE_NVML_USED="600")
    assert free == str([(81559 - 600) * MIB])


def test_each_device_is_told_in_its_order(driver_library: Path) -> None:
    assert answer(driver_library, FAKE_NVML_DEVICES=f"{L4}|{H100}") == str([23034 * MIB, 81559 * MIB])


def test_there_may_be_none(driver_library: Path) -> None:
    assert answer(driver_library) == "[]"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"FAKE_NVML_INIT": "9"}, "NVML does not tell its start (error 9)"),
        ({"FAKE_NVML_LOST": "0"}, "NVML does not tell GPU 0 (error 15)"),
        ({"FAKE_NVML_DEVICES": "NVIDIA GB10,12.1,0"}, "NVML does not tell the memory of GPU 0 (error 3)"),
        ({"FAKE_NVML_MIG": "2"}, "GPU 0 is split by MIG"),
    ],
)
def test_what_cannot_be_told_is_said(driver_library: Path, environ: dict[str, str], words: str) -> None:
    assert answer(driver_library, **{"FAKE_NVML_DEVICES": H100, **environ}) == words


def test_without_a_driver_there_is_no_answer(tmp_path: Path) -> None:
    assert answer(tmp_path) == "NVML: libnvidia-ml.so.1 is not here"
