"""Whether a model file is read where it lies or landed on local disk first, and why; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.storage import Place

# Room for the file, its manifest, and what else a container writes meanwhile.
ROOM_FACTOR = 1.1
CACHED_ENOUGH = 0.95


@dataclass(frozen=True)
class Plan:
    """What to do with one file: `target` is the folder to land it in, or None to read it in place.

    `reread_bytes` is how much of the landed file the page cache cannot keep until it is read; `cached_share` is how
    much of the file was found there (0 to 1), None when nobody looked.
    """

    target: Path | None
    reason: str
    reread_bytes: int = 0
    cached_share: float | None = None

    @property
    def land(self) -> bool:
        """Whether the file is to be copied before the load."""
        return self.target is not None


@dataclass(frozen=True)
class ModelFile:
    """The facts a plan rests on: where the file is, its size, and how much of it is in the page cache (0 to 1)."""

    place: Place
    size_bytes: int
    cached_share: float


def plan(file: ModelFile, targets: Sequence[Place], memory_headroom_bytes: int | None) -> Plan:
    """Choose for `file` among folders in order of preference; local disk before memory."""
    if not file.place.distant:
        return Plan(None, f"{file.place.filesystem} is local")
    if file.cached_share >= CACHED_ENOUGH:
        return Plan(None, f"{file.cached_share:.0%} of it is in the page cache already")
    needed_bytes = int(file.size_bytes * ROOM_FACTOR)
    refused = []
    for target in sorted(targets, key=lambda t: t.in_memory):
        problem = _problem(target, needed_bytes, memory_headroom_bytes)
        if problem is None:
            excess_bytes = 0 if memory_headroom_bytes is None else file.size_bytes - memory_headroom_bytes
            reason = f"{file.place.filesystem} is distant, {target.path} has room"
            return Plan(target.path, reason, max(0, excess_bytes), file.cached_share)
        refused.append(problem)
    return Plan(None, f"{file.place.filesystem} is distant, but " + "; ".join(refused or ["no folder was offered"]))


def _problem(target: Place, needed_bytes: int, memory_headroom_bytes: int | None) -> str | None:
    if target.distant:
        return f"{target.path} is distant as well ({target.filesystem})"
    if target.free_bytes <= needed_bytes:
        return f"{target.path} has {target.free_bytes / 1e9:.1f} GB free of {needed_bytes / 1e9:.1f} GB needed"
    # A tmpfs is charged like anonymous memory: filling it past the limit kills the container, not the copy.
    if target.in_memory and memory_headroom_bytes is None:
        return f"{target.path} is memory, and how much is left cannot be told"
    if target.in_memory and memory_headroom_bytes is not None and memory_headroom_bytes <= needed_bytes:
        return f"{target.path} is memory, with {memory_headroom_bytes / 1e9:.1f} GB left below the container's limit"
    return None
