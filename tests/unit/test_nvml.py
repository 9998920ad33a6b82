"""What nvidia-ml-py reads from a driver library, driven through the real bindings and a compiled stand-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler for the stand-in driver library")

PROGRAM = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from worker import gpu
print(json.dumps(asdict(gpu.detect(os.environ, proc=Path(sys.argv[1])))))
"""
H100 = "NVIDIA H100 80GB HBM3,9.0,81559"
L4 = "NVIDIA L4,8.9,23034"


@pytest.fixture(scope="module")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-in and return the directory it lies in."""
    directory = tmp_path_factory.mktemp("driver")
    source = ROOT / "tests" / "fakes" / "fakenvml.c"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    target = directory / "libnvidia-ml.so.1"
    subprocess.run([str(COMPILER), *flags, "-o", str(target), str(source)], check=True, timeout=60)
    return directory


@pytest.fixture
def detect(driver_library: Path, tmp_path: Path) -> Any:
    """Return a function that detects devices in a process of its own: the bindings keep the library loaded."""

    def run(**environ: str) -> dict[str, Any]:
        env = {"PATH": "", "LD_LIBRARY_PATH": str(driver_library), "LC_ALL": os.environ.get("LC_ALL", "C"), **environ}
        argv = [sys.executable, "-c", PROGRAM, str(tmp_path)]
        done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


def test_devices_and_driver_are_read(detect: Any) -> None:
    found = detect(FAKE_NVML_DEVICES=f"{H100}|{L4}", FAKE_NVML_DRIVER="590.44.01", FAKE_NVML_CUDA="13010")
    assert found == {
        "devices": [
            {
                "index": 0,
                "name": "NVIDIA H100 80GB HBM3",
                "uuid": "GPU-00000000-0000-4000-8000-000000000000",
                "capability": [9, 0],
                "memory_bytes": 81559 * 2**20,
                "mig": False,
            },
            {
                "index": 1,
                "name": "NVIDIA L4",
                "uuid": "GPU-00000001-0000-4000-8000-000000000000",
                "capability": [8, 9],
                "memory_bytes": 23034 * 2**20,
                "mig": False,
            },
        ],
        "driver": {"version": "590.44.01", "reported_cuda": [13, 1]},
        "how": "NVML",
        "notes": [],
    }


def test_a_driver_without_devices_is_an_answer(detect: Any) -> None:
    found = detect(NVIDIA_VISIBLE_DEVICES="void")
    assert (found["how"], found["devices"]) == ("NVML", [])
    assert found["notes"] == ["NVIDIA_VISIBLE_DEVICES=void: the container was started without a GPU"]


def test_a_lost_device_is_a_note_and_does_not_hide_the_others(detect: Any) -> None:
    found = detect(FAKE_NVML_DEVICES=f"{H100}|{L4}", FAKE_NVML_LOST="0")
    assert [device["name"] for device in found["devices"]] == ["NVIDIA L4"]
    assert found["notes"] == ["GPU 0: GPU is lost"]


def test_facts_a_gpu_does_not_tell_stay_unknown(detect: Any) -> None:
    found = detect(FAKE_NVML_DEVICES="NVIDIA GB10,12.1,0", FAKE_NVML_CUDA="0")
    assert found["devices"][0]["memory_bytes"] is None
    assert found["driver"]["reported_cuda"] is None


def test_a_split_gpu_is_its_mig_instances(detect: Any) -> None:
    found = detect(FAKE_NVML_DEVICES=H100, FAKE_NVML_MIG="2")
    assert [(device["index"], device["uuid"][:17], device["mig"]) for device in found["devices"]] == [
        (0, "MIG-00000000-0000", True),
        (1, "MIG-00000000-0001", True),
    ]
    assert {tuple(device["capability"]) for device in found["devices"]} == {(9, 0)}
    assert {device["memory_bytes"] for device in found["devices"]} == {81559 // 7 * 2**20}
    assert found["notes"] == ["GPU 0 is split by MIG into 2 instances; CUDA sees only those"]


def test_a_gpu_split_into_nothing_is_no_device(detect: Any) -> None:
    found = detect(FAKE_NVML_DEVICES=f"{H100}", FAKE_NVML_MIG="0")
    assert found["devices"] == []
    assert "split by MIG into 0 instances" in found["notes"][0]


def test_one_mig_instance_can_be_made_visible_by_its_uuid(detect: Any) -> None:
    found = detect(FAKE_NVML_DEVICES=H100, FAKE_NVML_MIG="3", CUDA_VISIBLE_DEVICES="MIG-00000000-0002")
    assert [device["uuid"][:17] for device in found["devices"]] == ["MIG-00000000-0002"]


def test_a_library_that_cannot_speak_to_its_driver_is_a_note(detect: Any) -> None:
    found = detect(FAKE_NVML_DEVICES=H100, FAKE_NVML_INIT="18")
    assert (found["devices"], found["how"]) == ([], "nothing answered")
    assert "NVML: RM has detected an NVML/RM version mismatch" in found["notes"][0]


def test_where_nvml_fails_the_kernels_own_word_on_the_driver_is_kept(detect: Any, tmp_path: Path) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\n")
    found = detect(FAKE_NVML_INIT="18")
    assert found["driver"]["version"] == "550.54.15"


def test_a_driver_version_that_is_none_is_a_note(detect: Any) -> None:
    found = detect(FAKE_NVML_DEVICES=H100, FAKE_NVML_DRIVER="unknown")
    assert found["devices"] == []
    assert "'unknown' is no driver version" in found["notes"][0]
