"""Devices and driver from NVML, the driver's own library, within milliseconds and without a process."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worker.device import Device, Driver, Found, Unanswered

if TYPE_CHECKING:
    from types import ModuleType

_LIBRARY = "libnvidia-ml.so.1"


def ask() -> Found:
    """Return what NVML sees, MIG instances in place of a GPU that is split into them.

    Raises:
        Unanswered: the driver's library is not here, or cannot speak to the driver.
    """
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        raise Unanswered(f"NVML: {_LIBRARY} is not here") from None
    import pynvml  # noqa: PLC0415  # 35 ms that a machine without the driver need not pay

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unanswered(f"NVML: {error}") from None
    try:
        return _Survey(pynvml).found()
    except (pynvml.NVMLError, ValueError) as error:
        raise Unanswered(f"NVML: {error}") from None
    finally:
        pynvml.nvmlShutdown()


@dataclass
class _Survey:
    """One pass over the devices; what cannot be read becomes a note and does not hide the rest."""

    nvml: ModuleType
    devices: list[Device] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def found(self) -> Found:
        version = self.nvml.nvmlSystemGetDriverVersion()
        cuda = self._optional("nvmlSystemGetCudaDriverVersion_v2")
        driver = Driver(version, (cuda // 1000, cuda % 1000 // 10) if cuda else None)
        for index in range(self.nvml.nvmlDeviceGetCount()):
            self._add(index)
        return Found(tuple(self.devices), driver, "NVML", tuple(self.notes))

    def _add(self, index: int) -> None:
        try:
            handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
            name = self.nvml.nvmlDeviceGetName(handle)
            capability = tuple(self.nvml.nvmlDeviceGetCudaComputeCapability(handle))
        except self.nvml.NVMLError as error:
            self.notes.append(f"GPU {index}: {error}")
            return
        parts = self._instances(handle)
        if parts is not None:
            self.notes.append(f"GPU {index} is split by MIG into {len(parts)} instances; CUDA sees only those")
        for part in [handle] if parts is None else parts:
            uuid = self._optional("nvmlDeviceGetUUID", part) or ""
            memory = self._optional("nvmlDeviceGetMemoryInfo", part)
            total = memory.total if memory else None
            self.devices.append(Device(len(self.devices), name, uuid, capability, total, parts is not None))

    def _instances(self, handle: object) -> list[object] | None:
        """Return the MIG instances of a GPU, or None when it is not split."""
        mode = self._optional("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != self.nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        slots = range(self._optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
        parts = (self._optional("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots)
        return [part for part in parts if part is not None]

    def _optional(self, function: str, *args: object) -> Any:
        """Return a fact not every GPU or driver knows, or None."""
        try:
            return getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError:
            return None
