"""Looking for devices where there is no NVML: nvidia-smi, the driver's files, and nothing at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from worker import gpu, nvml
from worker.device import Unanswered

FAKES = Path(__file__).parents[1] / "fakes"
ABSENT = Path("/nonexistent")


@pytest.fixture(autouse=True)
def _no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the library a developer's machine may have."""
    monkeypatch.setattr(nvml, "_LIBRARY", "libnvidia-ml-absent.so.1")


def smi(**answers: str) -> dict[str, str]:
    """Return an environment in which nvidia-smi gives these answers."""
    return {"PATH": f"{FAKES}:/usr/bin:/bin", **answers}


def proc_tree(root: Path, version: str, *models: str) -> Path:
    """Write the driver's files as the kernel module shows them."""
    root.mkdir()
    (root / "version").write_text(version)
    for number, model in enumerate(models):
        card = root / "gpus" / f"0000:0{number}:00.0"
        card.mkdir(parents=True)
        (card / "information").write_text(
            f"Model: \t\t {model}\nIRQ:   \t\t 1{number}\nGPU UUID: \t GPU-{number}\nVideo BIOS: \t ??.??.??.??.??\n"
            f"Bus Type: \t PCIe\nBus Location: \t 0000:0{number}:00.0\nDevice Minor: \t {number}\n"
            f"GPU Excluded:\t {'Yes' if 'excluded' in model else 'No'}\n"
        )
    return root


PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024\nGCC version: 12\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs@b)  Thu Jan 23\n"


def test_nvidia_smi_answers_where_nvml_does_not() -> None:
    found = gpu.detect(smi(), proc=ABSENT)
    (device,) = found.devices
    assert found.how == "nvidia-smi"
    assert (device.name, device.capability, device.memory_bytes) == ("NVIDIA L40S", (8, 9), 46068 * 2**20)
    assert device.uuid.startswith("GPU-")
    assert not device.mig
    assert str(found.driver) == "565.57.01 (CUDA 12.7)"
    assert found.notes == ("NVML: libnvidia-ml-absent.so.1 is not here",)


def test_nvidia_smi_may_not_know_the_memory_and_may_know_mig() -> None:
    (device,) = gpu.detect(smi(SMI_MIB="[N/A]", SMI_MIG="Enabled"), proc=ABSENT).devices
    assert (device.memory_bytes, device.mig) == (None, True)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"SMI_FAIL": "Failed to initialize NVML: Driver/library version mismatch"}, "exit code 9: Failed to init"),
        ({"SMI_CC": "[N/A]"}, "is no compute capability"),
        ({"SMI_DRIVER": "[N/A]"}, "is no driver version"),
        ({"SMI_CC": "8.9, 9.0"}, "cannot read"),
    ],
)
def test_an_nvidia_smi_that_does_not_help_is_a_note(answers: dict[str, str], problem: str) -> None:
    found = gpu.detect(smi(**answers), proc=ABSENT)
    assert found.devices == ()
    assert problem in found.notes[1]


@pytest.mark.timeout(40)
def test_a_slow_nvidia_smi_is_given_up() -> None:
    found = gpu.detect(smi(SMI_SLEEP="600"), proc=ABSENT, smi_timeout_s=0.2)
    assert found.notes[1] == "nvidia-smi: no answer within 0.2 s"


def test_an_nvidia_smi_that_is_no_program_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_bytes(b"\x00\x01")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(Unanswered, match="nvidia-smi: "):
        gpu.ask_smi({"PATH": str(tmp_path)}, 5)


def test_the_drivers_files_tell_names_but_no_capability(tmp_path: Path) -> None:
    proc = proc_tree(tmp_path / "nvidia", PROPRIETARY, "NVIDIA H100 80GB HBM3", "NVIDIA excluded", "NVIDIA L4")
    found = gpu.detect({"PATH": ""}, proc=proc)
    assert [(device.index, device.name, device.uuid) for device in found.devices] == [
        (0, "NVIDIA H100 80GB HBM3", "GPU-0"),
        (1, "NVIDIA L4", "GPU-2"),
    ]
    assert {device.capability for device in found.devices} == {None}
    assert found.how == str(proc)
    assert found.driver
    assert found.driver.version == "550.127.05"


def test_the_open_kernel_modules_version_is_read_too(tmp_path: Path) -> None:
    driver = gpu.proc_driver(proc_tree(tmp_path / "nvidia", OPEN))
    assert driver
    assert driver.version == "570.86.15"


@pytest.mark.parametrize("text", ["", "NVRM version: something else\n", "\udcff\n"])
def test_a_version_file_that_says_nothing_is_no_driver(text: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert gpu.proc_driver(tmp_path) is None


def test_missing_facts_are_explained_by_the_containers_settings(tmp_path: Path) -> None:
    proc = proc_tree(tmp_path / "nvidia", PROPRIETARY, "NVIDIA L4")
    found = gpu.detect({"PATH": "", "NVIDIA_DRIVER_CAPABILITIES": "compute"}, proc=proc)
    assert found.notes[-1].startswith("NVIDIA_DRIVER_CAPABILITIES=compute: without 'utility'")


@pytest.mark.parametrize("value", ["void", "none", "", "VOID"])
def test_a_container_started_without_a_gpu_says_so(value: str) -> None:
    found = gpu.detect({"PATH": "", "NVIDIA_VISIBLE_DEVICES": value}, proc=ABSENT)
    assert found.notes[-1] == f"NVIDIA_VISIBLE_DEVICES={value}: the container was started without a GPU"


def test_a_container_that_was_given_gpus_is_not_blamed() -> None:
    found = gpu.detect({"PATH": "", "NVIDIA_VISIBLE_DEVICES": "all"}, proc=ABSENT)
    assert not any("NVIDIA_VISIBLE_DEVICES" in note for note in found.notes)


def test_cuda_visible_devices_filters_what_was_found() -> None:
    assert gpu.detect(smi(CUDA_VISIBLE_DEVICES=""), proc=ABSENT).devices == ()
    assert len(gpu.detect(smi(CUDA_VISIBLE_DEVICES="0"), proc=ABSENT).devices) == 1


WITHOUT_GPU = """
import sys
from pathlib import Path
from worker import gpu, nvml
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in ("subprocess.Popen", "os.posix_spawn") else None)
nvml._LIBRARY = "libnvidia-ml-absent.so.1"
found = gpu.detect({"PATH": "/nonexistent"}, proc=Path("/nonexistent"))
print(found.devices, found.driver, started, "pynvml" in sys.modules)
"""


def test_a_machine_without_a_gpu_is_told_without_a_process_and_without_loading_the_bindings() -> None:
    argv = [sys.executable, "-c", WITHOUT_GPU]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60, cwd=FAKES.parents[1])
    assert done.stdout.strip() == "() None [] False"


def test_every_way_that_failed_is_told() -> None:
    found = gpu.detect({"PATH": ""}, proc=ABSENT)
    assert found.how == "nothing answered"
    assert found.notes == (
        "NVML: libnvidia-ml-absent.so.1 is not here",
        "nvidia-smi: not in PATH",
        "/nonexistent: the driver is not loaded",
    )
