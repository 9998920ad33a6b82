"""Pairs of entries as stretches of time, and the phases inside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from worker.events import Span
from worker.timeline.parse import Entry

# Only this span is time in which the worker had nothing to do.
IDLE_SPAN = "wait"


class State(Enum):
    """What is known of a stretch's end."""

    CLOSED = "closed"
    OPEN = "open"
    """Its end was never reported; it is drawn to the end of the timeline."""
    CUT = "cut"
    """It ended after the timeline did, so nothing in the timeline waited for its end."""


@dataclass(frozen=True)
class Stretch:
    """A named piece of time, in nanoseconds since 1970."""

    name: str
    start_ns: int
    end_ns: int
    meaning: str = ""
    state: State = State.CLOSED
    job_id: str | None = None
    parts: tuple[Stretch, ...] = ()
    """Phases read from the server's log: they follow one another without a hole and fill the stretch."""

    @property
    def took_ns(self) -> int:
        """Length in nanoseconds."""
        return self.end_ns - self.start_ns

    @property
    def idle(self) -> bool:
        """Whether this is waiting for a job, which is not the worker's fault."""
        return self.name == IDLE_SPAN

    def within(self, start_ns: int, end_ns: int) -> Stretch:
        """Return the part of this stretch that lies in a window; empty stretches stay empty at its border."""
        state = State.CUT if self.end_ns > end_ns and self.state is State.CLOSED else self.state
        start, end = (min(max(at, start_ns), end_ns) for at in (self.start_ns, self.end_ns))
        return dataclasses.replace(self, start_ns=start, end_ns=end, state=state)


def place(entries: Iterable[Entry], table: Mapping[str, Span]) -> list[Stretch]:
    """Pair the starts and ends of `table` in sorted entries, in order of start.

    Spans whose two events carry a `job_id` are paired per job. A start seen again before its end is a repetition; a
    start whose end came before it lost a race and took no time; one without any end lasts until the last entry.
    """
    begun: dict[tuple[str, str | None], int] = {}
    ended: set[str] = set()
    found: list[Stretch] = []
    last_ns = 0
    for entry in entries:
        last_ns = entry.at_ns
        job_id = entry.text("job_id") or None
        for name, span in table.items():
            if entry.name == span.end:
                key = (name, job_id) if (name, job_id) in begun else (name, None)
                started_ns = begun.pop(key, None)
                if started_ns is None:
                    ended.add(name)
                else:
                    found.append(Stretch(name, started_ns, entry.at_ns, span.meaning, job_id=key[1]))
            if entry.name == span.start:
                if job_id is None and name in ended:
                    ended.discard(name)
                else:
                    begun.setdefault((name, job_id), entry.at_ns)
    for (name, job_id), started_ns in begun.items():
        found.append(Stretch(name, started_ns, last_ns, table[name].meaning, State.OPEN, job_id))
    order = list(table)
    return sorted(found, key=lambda stretch: (stretch.start_ns, order.index(stretch.name), stretch.end_ns))


def divide(stretch: Stretch, entries: Sequence[Entry], phases: Mapping[str, str], first: str) -> Stretch:
    """Fill a stretch with the phases that its landmarks open.

    `phases` maps a landmark to the phase it opens, `first` names the phase before the first landmark. A landmark counts
    once, as Ollama repeats some; the one at the head of `phases` starts a new attempt and lets all count again.
    """
    head = next(iter(phases))
    seen: set[str] = set()
    parts = [Stretch(first, stretch.start_ns, stretch.end_ns)]
    for entry in entries:
        inside = stretch.start_ns <= entry.at_ns <= stretch.end_ns
        if not (entry.exact and inside and entry.name in phases):
            continue
        if entry.name == head:
            seen.clear()
        name = phases[entry.name]
        if entry.name not in seen and name != parts[-1].name:
            parts[-1] = dataclasses.replace(parts[-1], end_ns=entry.at_ns)
            parts.append(Stretch(name, entry.at_ns, stretch.end_ns))
        seen.add(entry.name)
    lasting = tuple(part for part in parts if part.took_ns)
    return dataclasses.replace(stretch, parts=lasting if len(lasting) > 1 else ())
