"""One start as a timeline: its window, its spans, what they leave open, and the chain that set its length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.events import SPANS
from worker.timeline import boots, coverage, foreign, jobs, phases, spans
from worker.timeline.jobs import Job
from worker.timeline.parse import Entry
from worker.timeline.spans import State, Stretch

# The first of these that happened is where a cold start ends.
_OWN_ENDS = ("job.chunk_posted", "boot.ready", "boot.failed")
_FOREIGN_ENDS = ("job.token_received", "job.finished", "load.finished", "server.answered")
_PASSED = "source.passed_over"


@dataclass(frozen=True)
class Timeline:
    """Times are nanoseconds since 1970; `covered_ns + gap_ns == total_ns` always."""

    start_ns: int
    end_ns: int
    start_event: str
    end_event: str
    own: bool
    """Made from the worker's events; False when it was read off another image's log."""
    spans: tuple[Stretch, ...]
    """In order of start, cut to the window, with their phases; of jobs only the one that ended the window."""
    gaps: tuple[Stretch, ...]
    path: tuple[Stretch, ...]
    """The critical path: spans and gaps that follow one another from start to end."""
    jobs: tuple[Job, ...]
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    """What a reader has to know to trust the numbers."""

    @property
    def total_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns

    @property
    def gap_ns(self) -> int:
        """Time no span explains."""
        return sum(gap.took_ns for gap in self.gaps)

    @property
    def covered_ns(self) -> int:
        """Time at least one span explains."""
        return self.total_ns - self.gap_ns

    @property
    def idle_ns(self) -> int:
        """Time spent waiting for a job."""
        return sum(span.took_ns for span in self.spans if span.idle)


def timelines(entries: Sequence[Entry]) -> tuple[Timeline, ...]:
    """Make one timeline for each start in sorted, non-empty entries."""
    return tuple(_timeline(boot) for boot in boots.split(entries))


def _timeline(boot: tuple[Entry, ...]) -> Timeline:
    own = any(entry.own for entry in boot)
    entries = boot if own else foreign.adapt(boot)
    timed = tuple(entry for entry in entries if entry.exact) or entries
    in_window = tuple(entry for entry in timed if entry.own) if own else timed
    end = _first(in_window, _OWN_ENDS if own else _FOREIGN_ENDS) or timed[-1]
    start = _first(in_window, ("container.started", "container.begun")) or in_window[0]
    window = (start.at_ns, max(start.at_ns, end.at_ns))
    placed = _spans(timed, window, job_id=end.text("job_id"), own=own)
    return Timeline(
        start_ns=window[0],
        end_ns=window[1],
        start_event=start.name,
        end_event=end.name,
        own=own,
        spans=placed,
        gaps=coverage.gaps(placed, *window),
        path=coverage.critical_path(placed, *window),
        jobs=jobs.collect(entries),
        entries=entries,
        notes=_notes(entries, placed, start, own=own),
    )


def _first(entries: Sequence[Entry], names: Sequence[str]) -> Entry | None:
    """Return the first entry with the first of `names` that occurs."""
    return next((entry for name in names for entry in entries if entry.name == name), None)


def _spans(timed: Sequence[Entry], window: tuple[int, int], *, job_id: str, own: bool) -> tuple[Stretch, ...]:
    start_ns, end_ns = window
    placed = spans.place(timed, SPANS if own else foreign.FOREIGN_SPANS)
    kept = [span for span in placed if span.job_id in {None, job_id} and start_ns <= span.start_ns < end_ns]
    return tuple(phases.refine(span.within(start_ns, end_ns), tuple(timed)) for span in kept)


def _notes(entries: Sequence[Entry], placed: Sequence[Stretch], start: Entry, *, own: bool) -> tuple[str, ...]:
    found = [f"{span.name}: its end was never reported" for span in placed if span.state is State.OPEN]
    failed = _first(entries, ("boot.failed",))
    if failed is not None:
        found.append(f"the start failed: {failed.text('message')} ({failed.text('code')})")
    weights = _first(entries, ("weights.placed",))
    if weights is not None:
        passed = [f"{entry.text('source')} ({entry.text('reason')})" for entry in entries if entry.name == _PASSED]
        found.append(f"weights from {weights.text('source')}" + (f"; not from {', '.join(passed)}" if passed else ""))
    timeless = sum(not entry.exact for entry in entries)
    if timeless and not own:
        found.append(f"{timeless} lines have no time of their own; `docker logs -t` would give them one")
    if any(entry.coarse and entry.name == "request.finished" for entry in entries):
        found.append("requests are timed in whole seconds in this log: their ends may be up to 1 s later than shown")
    platform = _first(entries, ("container.begun",))
    if platform is not None and platform.at_ns < start.at_ns:
        before_s = (start.at_ns - platform.at_ns) / 1e9
        found.append(f"the platform began to start the container {before_s:.1f} s before this timeline begins")
    return tuple(found)
