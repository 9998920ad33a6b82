"""NVIDIA devices and their driver as values, and which of them a CUDA program may see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Capability = tuple[int, int]

# The newest CUDA version each driver branch brings (CUDA Toolkit release notes).
_CUDA_OF_BRANCH = {
    450: (11, 0),
    470: (11, 4),
    510: (11, 6),
    515: (11, 7),
    520: (11, 8),
    525: (12, 0),
    530: (12, 1),
    535: (12, 2),
    545: (12, 3),
    550: (12, 4),
    555: (12, 5),
    560: (12, 6),
    565: (12, 7),
    570: (12, 8),
    575: (12, 9),
    580: (13, 0),
    590: (13, 1),
}


class Unanswered(Exception):
    """One way of asking for devices gave no answer; the text says why."""


@dataclass(frozen=True)
class Device:
    """A GPU, or one MIG instance of it (`mig`). Unknown facts are None; `index` counts as CUDA does."""

    index: int
    name: str
    uuid: str = ""
    capability: Capability | None = None
    memory_bytes: int | None = None
    mig: bool = False

    def __str__(self) -> str:
        """Return name and compute capability, as in `NVIDIA L4 (8.9)`."""
        return f"{self.name} ({dotted(self.capability) if self.capability else '?'})"


@dataclass(frozen=True)
class Driver:
    """The kernel driver: its version as it spells it, and the CUDA version (major, minor) it says it brings.

    Raises:
        ValueError: the version does not start with a number.
    """

    version: str
    reported_cuda: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no version: every floor is compared with its first number."""
        if not self.version.partition(".")[0].isdecimal():
            raise ValueError(f"{self.version!r} is no driver version")

    @property
    def branch(self) -> int:
        """The number driver floors are given in: 550 for 550.127.05."""
        return int(self.version.partition(".")[0])

    @property
    def cuda(self) -> tuple[int, int]:
        """The newest CUDA version this driver is good for; from its branch when it did not say."""
        if self.reported_cuda:
            return self.reported_cuda
        return max((cuda for branch, cuda in _CUDA_OF_BRANCH.items() if branch <= self.branch), default=(0, 0))

    def __str__(self) -> str:
        """Return both versions, as in `550.127.05 (CUDA 12.4)`."""
        return f"{self.version} (CUDA {dotted(self.cuda)})"


@dataclass(frozen=True)
class Found:
    """What a look at the machine gave, `how`, and `notes`: everything that stood in the way or was left out."""

    devices: tuple[Device, ...]
    driver: Driver | None
    how: str
    notes: tuple[str, ...] = ()

    def with_notes(self, *notes: str) -> Found:
        """Return the same with `notes` added."""
        return replace(self, notes=self.notes + tuple(note for note in notes if note))


def dotted(version: tuple[int, int]) -> str:
    """Return `(9, 0)` as `9.0`."""
    return f"{version[0]}.{version[1]}"


def capability_of(text: str) -> Capability:
    """Return `9.0`, `90` or `sm_90a` as `(9, 0)`; architecture suffixes do not count.

    Raises:
        ValueError: the text names no compute capability.
    """
    digits = text.strip().lower().removeprefix("sm_").removeprefix("compute_").rstrip("af")
    major, dot, minor = digits.partition(".") if "." in digits else (digits[:-1], ".", digits[-1:])
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise ValueError(f"{text!r} is no compute capability: write 9.0 or 90")
    return int(major), int(minor)


def visible(found: Found, environ: Mapping[str, str]) -> Found:
    """Return `found` with only the devices CUDA would show under CUDA_VISIBLE_DEVICES, counted from 0 again.

    As in CUDA, the list ends at its first entry that names no device. With unequal devices CUDA counts the
    fastest first unless CUDA_DEVICE_ORDER says otherwise, so numbers say nothing here: all devices are kept,
    because a verdict on one too many is the safe mistake.
    """
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return found
    entries = [entry.strip() for entry in wanted.split(",")]
    unequal = len({(device.name, device.capability) for device in found.devices}) > 1
    numbers = any(entry.isdecimal() for entry in entries)
    if numbers and unequal and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return found.with_notes(f"CUDA_VISIBLE_DEVICES={wanted}: numbers are ambiguous between unequal devices")
    kept: list[Device] = []
    for entry in entries:
        device = _named(entry, found.devices)
        if device is None:
            break
        if device not in kept:
            kept.append(device)
    hidden = len(found.devices) - len(kept)
    note = f"CUDA_VISIBLE_DEVICES={wanted} hides {hidden} of {len(found.devices)} devices" if hidden else ""
    devices = tuple(replace(device, index=index) for index, device in enumerate(kept))
    return replace(found, devices=devices).with_notes(note)


def _named(entry: str, devices: tuple[Device, ...]) -> Device | None:
    """Return the device an entry of CUDA_VISIBLE_DEVICES stands for: its number, or the start of its UUID."""
    if entry.isdecimal():
        return next((device for device in devices if device.index == int(entry)), None)
    matches = [device for device in devices if entry.startswith(("GPU-", "MIG-")) and device.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
