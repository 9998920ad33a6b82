"""Which time the spans explain, which they leave open, and which of them the end had to wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.timeline.spans import State, Stretch

GAP = "gap"


def gaps(spans: Iterable[Stretch], start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """Return the pieces of `[start_ns, end_ns]` that no span covers, each named by its neighbours."""
    found: list[Stretch] = []
    reached_ns, last = start_ns, "the start"
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        if span.start_ns > reached_ns:
            found.append(Stretch(GAP, reached_ns, span.start_ns, f"{last} → {span.name}"))
        if span.end_ns >= reached_ns:
            reached_ns, last = span.end_ns, span.name
    if end_ns > reached_ns:
        found.append(Stretch(GAP, reached_ns, end_ns, f"{last} → the end"))
    return tuple(found)


def critical_path(spans: Sequence[Stretch], start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """Return the chain of spans the end had to wait for; with the gaps between them it fills the whole time.

    Walks back from the end and takes, wherever it stands, the span that ended last before it: at a join that is the
    branch everything waited for. A span still running at that point was not waited for. At equal ends a known end wins
    over a missing one, and the longer span over the shorter.
    """
    chain: list[Stretch] = []
    at_ns = end_ns
    while at_ns > start_ns:
        ended = [span for span in spans if span.took_ns and span.end_ns <= at_ns and span.state is not State.CUT]
        latest = max(
            ended,
            key=lambda span: (span.end_ns, span.state is State.CLOSED, span.took_ns, span.name),
            default=Stretch(GAP, start_ns, start_ns),
        )
        if latest.end_ns < at_ns:
            before = "the end" if at_ns == end_ns else chain[-1].name
            after = latest.name if latest.took_ns else "the start"
            chain.append(Stretch(GAP, latest.end_ns, at_ns, f"{after} → {before}"))
        if latest.took_ns:
            chain.append(latest)
        at_ns = latest.start_ns
    return tuple(reversed(chain))
