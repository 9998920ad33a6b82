"""Which NVIDIA devices and which driver this machine has, asked in the fastest way that answers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from worker import nvml
from worker.device import Device, Driver, Found, Unanswered, capability_of, visible

if TYPE_CHECKING:
    from collections.abc import Mapping

PROC = Path("/proc/driver/nvidia")

_SMI_FIELDS = ("name", "uuid", "compute_cap", "memory.total", "mig.mode.current", "driver_version")
_PROC_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_NO_DEVICES = {"", "none", "void"}


def detect(environ: Mapping[str, str], *, proc: Path = PROC, smi_timeout_s: float = 10.0) -> Found:
    """Return the devices CUDA would see, the driver, how they were found and what is noteworthy about it.

    NVML answers first, nvidia-smi only when NVML does not, the driver's files under `proc` when neither does:
    those tell the driver and the names, but no compute capability. Without any of them the answer is no device.
    """
    unanswered: list[str] = []
    found = None
    for ask in (nvml.ask, lambda: ask_smi(environ, smi_timeout_s), lambda: read_proc(proc)):
        try:
            found = ask()
            break
        except Unanswered as reason:
            unanswered.append(str(reason))
    if found is None:
        found = Found((), None, "nothing answered")
    return visible(found.with_notes(*unanswered, _container_note(found, environ)), environ)


def ask_smi(environ: Mapping[str, str], timeout_s: float) -> Found:
    """Return what nvidia-smi, found in PATH, prints within `timeout_s` seconds.

    Raises:
        Unanswered: there is none, it failed, it was too slow, or it printed something else.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH", ""))
    if program is None:
        raise Unanswered("nvidia-smi: not in PATH")
    argv = [program, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=dict(environ))
    except subprocess.TimeoutExpired:
        raise Unanswered(f"nvidia-smi: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise Unanswered(f"nvidia-smi: {error}") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or [""]
        raise Unanswered(f"nvidia-smi: exit code {done.returncode}: {said[-1]}")
    return _parse_smi(done.stdout)


def _parse_smi(text: str) -> Found:
    devices: list[Device] = []
    driver = None
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_SMI_FIELDS):
            raise Unanswered(f"nvidia-smi: cannot read {line!r}")
        name, uuid, capability, memory, mig, version = values
        try:
            known = capability_of(capability)
            driver = Driver(version)
        except ValueError as error:
            raise Unanswered(f"nvidia-smi: {error}") from None
        memory_bytes = int(memory) << 20 if memory.isdecimal() else None
        devices.append(Device(len(devices), name, uuid, known, memory_bytes, mig == "Enabled"))
    return Found(tuple(devices), driver, "nvidia-smi")


def read_proc(proc: Path) -> Found:
    """Return the devices the kernel driver lists under `proc`, without compute capability or memory.

    Raises:
        Unanswered: the driver is not loaded, or not shown in this container.
    """
    driver = proc_driver(proc)
    if driver is None:
        raise Unanswered(f"{proc}: the driver is not loaded")
    devices: list[Device] = []
    for information in sorted(proc.glob("gpus/*/information")):
        lines = (line.partition(":") for line in _text(information).splitlines())
        facts = {key.strip(): value.strip() for key, _, value in lines}
        if facts.get("GPU Excluded") != "Yes":
            devices.append(Device(len(devices), facts.get("Model", "unknown GPU"), facts.get("GPU UUID", "")))
    return Found(tuple(devices), driver, str(proc))


def proc_driver(proc: Path) -> Driver | None:
    """Return the loaded kernel driver's version, or None when `proc` does not tell."""
    match = _PROC_VERSION.search(_text(proc / "version"))
    return Driver(match[1]) if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _container_note(found: Found, environ: Mapping[str, str]) -> str:
    """Return what the container runtime was told that explains missing devices or missing facts, if anything."""
    asked = environ.get("NVIDIA_VISIBLE_DEVICES")
    if not found.devices and asked is not None and asked.strip().lower() in _NO_DEVICES:
        return f"NVIDIA_VISIBLE_DEVICES={asked}: the container was started without a GPU"
    capabilities = environ.get("NVIDIA_DRIVER_CAPABILITIES")
    if any(device.capability is None for device in found.devices) and capabilities is not None:
        return f"NVIDIA_DRIVER_CAPABILITIES={capabilities}: without 'utility' there is no NVML in the container"
    return ""
