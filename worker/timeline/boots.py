"""One log, several starts: where each begins."""

from __future__ import annotations

from collections.abc import Sequence

from worker.timeline.parse import Entry

# A start passes these in this order; meeting one again, or an earlier one, means that another start has begun.
_STAGES = ("container.created", "container.begun", "container.started", "worker.started", "server.configured")


def split(entries: Sequence[Entry]) -> list[tuple[Entry, ...]]:
    """Cut sorted entries into starts, oldest first; what precedes the first start's first line belongs to it."""
    boots: list[list[Entry]] = [[]]
    reached = -1
    for entry in entries:
        stage = _STAGES.index(entry.name) if entry.exact and entry.name in _STAGES else None
        if stage is not None:
            if stage <= reached:
                boots.append([])
            reached = stage
        boots[-1].append(entry)
    whole = [tuple(boot) for boot in boots if any(entry.exact and not _of_platform(entry) for entry in boot)]
    return whole or [tuple(entries)]


def _of_platform(entry: Entry) -> bool:
    return entry.name in {"container.created", "container.begun"}
