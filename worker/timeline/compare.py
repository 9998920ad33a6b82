"""Two timelines side by side: which span became shorter, which longer."""

from __future__ import annotations

from dataclasses import dataclass

from worker.timeline.model import Timeline
from worker.timeline.scale import Scale

_NAME_CELLS = 24
_NUMBER_CELLS = 11


@dataclass(frozen=True)
class Difference:
    """One span of both timelines, in nanoseconds; None where a timeline has no such span."""

    name: str
    """The span's name, or `span/phase`; `gaps` and `total` for these."""
    before_ns: int | None
    after_ns: int | None

    @property
    def change_ns(self) -> int:
        """How much longer it became; a span that is not there takes no time."""
        return (self.after_ns or 0) - (self.before_ns or 0)


def differences(before: Timeline, after: Timeline) -> tuple[Difference, ...]:
    """Compare span by span and phase by phase, in order of appearance, then gaps and total."""
    old, new = _lengths(before), _lengths(after)
    names = list(old)
    place = 0
    for name in new:
        # What only the second has stays behind the span it follows there.
        if name not in old:
            names.insert(place, name)
        place = names.index(name) + 1
    rows = [Difference(name, old.get(name), new.get(name)) for name in names]
    gaps = Difference("gaps", before.gap_ns, after.gap_ns)
    return (*rows, gaps, Difference("total", before.total_ns, after.total_ns))


def _lengths(timeline: Timeline) -> dict[str, int]:
    """Sum up the spans and phases of each name: a retried load has some phases twice."""
    found: dict[str, int] = {}
    for span in timeline.spans:
        found[span.name] = found.get(span.name, 0) + span.took_ns
        for part in span.parts:
            name = f"{span.name}/{part.name}"
            found[name] = found.get(name, 0) + part.took_ns
    return found


def render(before: Timeline, after: Timeline) -> str:
    """Print the comparison as a table 67 columns wide; lengths in the unit of the longer timeline."""
    longer = max(before, after, key=lambda timeline: timeline.total_ns)
    scale = Scale(longer.start_ns, longer.end_ns, cells=1)
    heads = "".join(f"{head:>{_NUMBER_CELLS}}" for head in ("before", "after", "change"))
    lines = [f"{f'span ({scale.unit})':<{_NAME_CELLS}}{heads}"]
    lines += [_row(row, scale) for row in differences(before, after)]
    for name in ("start", "end"):
        events = [getattr(timeline, f"{name}_event") for timeline in (before, after)]
        if events[0] != events[1]:
            lines.append(f"note: they {name} at different events: {events[0]}, {events[1]}")
    return "\n".join(lines) + "\n"


def _row(row: Difference, scale: Scale) -> str:
    span, _, phase = row.name.partition("/")
    before_ms, after_ms = (None if took is None else round(took / 1e6) for took in (row.before_ns, row.after_ns))
    shown = ["-" if took is None else scale.text(took) for took in (before_ms, after_ms)]
    change_ms = (after_ms or 0) - (before_ms or 0)
    shown.append(("+" if change_ms > 0 else "") + scale.text(change_ms))
    share = f"{change_ms / before_ms:+10.0%}" if before_ms and after_ms is not None else ""
    name = f"  {phase}" if phase else span
    return f"{name:<{_NAME_CELLS}}" + "".join(f"{text:>{_NUMBER_CELLS}}" for text in shown) + share
