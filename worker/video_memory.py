"""Free video memory, asked of the driver's library itself: the import of its bindings takes longer than the answer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from worker.device import Unanswered

_LIBRARY = "libnvidia-ml.so.1"
_MIG_ENABLED = 1


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def free_bytes() -> list[int]:
    """Return the free memory of each device NVML sees, in its order.

    Raises:
        Unanswered: the library is not here, or a device does not say, as one that is split by MIG.
    """
    with _library() as nvml:
        count = ctypes.c_uint()
        _checked(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "the number of devices")
        return [_free(nvml, index) for index in range(count.value)]


@contextmanager
def _library() -> Iterator[ctypes.CDLL]:
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise Unanswered(f"NVML: {_LIBRARY} is not here") from None
    _checked(nvml.nvmlInit_v2(), "its start")
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _free(nvml: ctypes.CDLL, index: int) -> int:
    handle, current, pending, memory = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint(), _Memory()
    _checked(nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)), f"GPU {index}")
    known = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(current), ctypes.byref(pending)) == 0
    if known and current.value == _MIG_ENABLED:
        raise Unanswered(f"GPU {index} is split by MIG")
    _checked(nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)), f"the memory of GPU {index}")
    return int(memory.free)


def _checked(code: int, what: str) -> None:
    if code:
        raise Unanswered(f"NVML does not tell {what} (error {code})")
