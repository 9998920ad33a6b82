"""A timeline as text for a terminal: waterfall, critical path, jobs, findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from worker.timeline.coverage import GAP
from worker.timeline.findings import Finding, findings
from worker.timeline.jobs import Job
from worker.timeline.model import Timeline
from worker.timeline.scale import Scale, duration
from worker.timeline.spans import State, Stretch

_NAME_CELLS = 19
_NUMBER_CELLS = 9
_LEAST_BAR_CELLS = 10
# Rows shorter than this share of the whole say nothing in a picture; they are drawn together.
_SMALLEST_SHARE = 200
_JOBS_SHOWN = 8

_BOLD, _RED, _DIM, _CYAN, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[36m", "\x1b[0m"


@dataclass(frozen=True)
class Style:
    """How to draw: characters per line, colours, and whether only ASCII can be shown."""

    width: int = 80
    colour: bool = False
    ascii_only: bool = False

    @property
    def bar_cells(self) -> int:
        """Characters left for bars beside the names and numbers."""
        return max(_LEAST_BAR_CELLS, self.width - _NAME_CELLS - 2 * _NUMBER_CELLS - 4)

    def paint(self, text: str, code: str) -> str:
        """Colour a text when colours are wanted."""
        return f"{code}{text}{_RESET}" if self.colour and text else text

    def sign(self, pretty: str, plain: str) -> str:
        """Choose a character by what the terminal can show."""
        return plain if self.ascii_only else pretty

    def show(self, text: str) -> str:
        """Return a text the terminal can show; nothing in it that a log brought along can steer the terminal."""
        printable = "".join(letter if letter.isprintable() else " " for letter in text)
        return printable.replace("→", "->").encode("ascii", "replace").decode() if self.ascii_only else printable

    def wrap(self, text: str, indent: str, first: str = "") -> list[str]:
        """Break a text into lines."""
        return textwrap.wrap(
            self.show(text), self.width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
        )


def render(timelines: Sequence[Timeline], style: Style) -> str:
    """Draw every start of a log, one below the other. Ends with a newline; the same input gives the same text."""
    pieces = []
    for number, timeline in enumerate(timelines, start=1):
        title = f"Cold start {number} of {len(timelines)}" if len(timelines) > 1 else "Cold start"
        pieces.append("\n".join(_lines(timeline, style, title)) + "\n")
    return "\n".join(pieces)


def _lines(timeline: Timeline, style: Style, title: str) -> Iterator[str]:
    folded = _fold(timeline)
    scale = Scale(timeline.start_ns, timeline.end_ns, style.bar_cells, ascii_only=style.ascii_only, folded=folded)
    total = f"{scale.moment(timeline.end_ns)} {scale.unit}"
    window = style.show(f"{timeline.start_event} → {timeline.end_event}")
    yield f"{style.paint(f'{title}: {total}', _BOLD)}  {window}"
    yield ""
    yield from _waterfall(timeline, style, scale)
    yield ""
    yield from _critical(timeline, style, scale)
    if timeline.jobs:
        yield ""
        yield from _jobs(timeline.jobs, style)
    found = findings(timeline)
    if found:
        yield ""
        yield style.paint("What to do", _BOLD)
        for number, finding in enumerate(found, start=1):
            yield from _finding(finding, number, style)
    if timeline.notes:
        yield ""
        for note in timeline.notes:
            yield from style.wrap(f"note: {note}", indent="      ")


def _fold(timeline: Timeline) -> tuple[int, int]:
    """Return what to leave out of the drawing: most of a wait that is longer than everything else together."""
    longest = max(
        (*timeline.gaps, *(span for span in timeline.spans if span.idle)), key=lambda row: row.took_ns, default=None
    )
    rest_ns = timeline.total_ns - longest.took_ns if longest is not None else 0
    if longest is None or longest.took_ns <= rest_ns:
        return (0, 0)
    margin_ns = rest_ns // 20
    return (longest.start_ns + margin_ns, longest.end_ns - margin_ns)


def _waterfall(timeline: Timeline, style: Style, scale: Scale) -> Iterator[str]:
    yield style.paint(
        f"  {'span':<{_NAME_CELLS}}{'start':>{_NUMBER_CELLS}}{'took':>{_NUMBER_CELLS}}  {scale.axis()}", _DIM
    )
    smallest_ns = scale.drawn_ns // _SMALLEST_SHARE
    shown_gaps = [gap for gap in timeline.gaps if gap.took_ns >= smallest_ns]
    path = {(step.name, step.start_ns, step.end_ns) for step in timeline.path}
    for row in sorted((*timeline.spans, *shown_gaps), key=lambda row: (row.start_ns, row.end_ns)):
        waited_for = (row.name, row.start_ns, row.end_ns) in path
        yield _row(row, style, scale, critical=waited_for and row.name != GAP)
        yield from (_row(part, style, scale, indent="  ") for part in row.parts if part.took_ns >= smallest_ns)
        yield from _rest("  other steps", [part for part in row.parts if part.took_ns < smallest_ns], scale)
    yield from _rest("short gaps", [gap for gap in timeline.gaps if gap.took_ns < smallest_ns], scale)
    gaps_ms = _sum(timeline.gaps, scale)
    covered, gaps = scale.text(scale.ms(timeline.end_ns) - gaps_ms), scale.text(gaps_ms)
    total = f"  {'total':<{_NAME_CELLS}}{'':>{_NUMBER_CELLS}}{scale.moment(timeline.end_ns):>{_NUMBER_CELLS}}"
    yield style.paint(total, _BOLD) + f"  = spans {covered} + gaps {gaps}"


def _rest(name: str, rows: Sequence[Stretch], scale: Scale) -> Iterator[str]:
    """Sum up rows too short to be drawn."""
    if rows:
        label = f"{name} ({len(rows)})"
        yield f"  {label:<{_NAME_CELLS}}{'':>{_NUMBER_CELLS}}{scale.text(_sum(rows, scale)):>{_NUMBER_CELLS}}"


def _sum(rows: Iterable[Stretch], scale: Scale) -> int:
    return sum(scale.ms(row.end_ns) - scale.ms(row.start_ns) for row in rows)


def _row(row: Stretch, style: Style, scale: Scale, *, critical: bool = False, indent: str = "") -> str:
    mark = style.sign("▶", ">") if critical else " "
    ending = {State.OPEN: " (no end)", State.CUT: " (goes on)", State.CLOSED: ""}[row.state]
    name = f"{indent}{row.name}{ending}"[:_NAME_CELLS].ljust(_NAME_CELLS)
    if row.name == GAP:
        fill, code = style.sign("┄", "."), _DIM
    elif row.idle:
        fill, code = style.sign("░", "-"), _DIM
    elif indent:
        fill, code = style.sign("▒", "="), _DIM
    else:
        fill, code = style.sign("█", "#"), _RED if critical else _CYAN
    start, took = scale.moment(row.start_ns), scale.length(row.start_ns, row.end_ns)
    bar = scale.bar(row.start_ns, row.end_ns, fill)
    spaces = len(bar) - len(bar.lstrip(" "))
    drawn = " " * spaces + style.paint(bar[spaces:], code)
    place = style.show(row.meaning)
    if row.name == GAP and len(bar) + len(place) < scale.cells:
        drawn += " " + style.paint(place, _DIM)
    return f"{mark} {name}{start:>{_NUMBER_CELLS}}{took:>{_NUMBER_CELLS}}  {drawn}"


def _critical(timeline: Timeline, style: Style, scale: Scale) -> Iterator[str]:
    lengths = [(step.name, scale.ms(step.end_ns) - scale.ms(step.start_ns)) for step in timeline.path]
    steps = [f"{name} {scale.text(took_ms)}" for name, took_ms in lengths if took_ms or name != GAP]
    text = f"{style.sign('▶', '>')} Critical path: " + " → ".join(steps or ["nothing"])
    text += f" = {scale.moment(timeline.end_ns)} {scale.unit}"
    yield from style.wrap(text, indent="  ")
    if timeline.idle_ns:
        idle = _sum((span for span in timeline.spans if span.idle), scale)
        busy = scale.text(scale.ms(timeline.end_ns) - idle)
        fill = style.sign("░", "-")
        text = f"{fill} No job was there for {scale.text(idle)} {scale.unit}; the rest took {busy} {scale.unit}."
        yield from style.wrap(text, indent="  ")
    if scale.folded[1]:
        hidden = duration(scale.folded[1] - scale.folded[0])
        text = f"The longest wait is drawn {hidden} shorter than it was, for the rest to be seen."
        yield from style.wrap(text, indent="  ", first="  ")


def _jobs(jobs: Sequence[Job], style: Style) -> Iterator[str]:
    for job in jobs[:_JOBS_SHOWN]:
        measured = [
            f"TTFT {duration(job.ttft_ns)}" if job.ttft_ns is not None else "",
            f"first chunk {duration(job.first_chunk_ns)}" if job.first_chunk_ns is not None else "",
            f"TPOT {duration(job.tpot_ns)}" if job.tpot_ns is not None else "",
            f"E2EL {duration(job.e2el_ns)}" if job.e2el_ns is not None else "",
            f"in {job.prompt_tokens} tokens{_rate(job.prefill_tokens_per_s)}" if job.prompt_tokens is not None else "",
            f"out {job.output_tokens} tokens{_rate(job.decode_tokens_per_s)}" if job.output_tokens is not None else "",
            "RESULT LOST" if job.undelivered else "",
            "" if job.outcome in {"finished", "undelivered"} else job.outcome,
        ]
        yield from style.wrap(f"job {job.job_id}: " + ", ".join(part for part in measured if part), indent="  ")
    rest = len(jobs) - _JOBS_SHOWN
    if rest > 0:
        yield f"and {rest} more; {_middle(jobs)}"


def _middle(jobs: Sequence[Job]) -> str:
    told = []
    for name, values in (("TTFT", [job.ttft_ns for job in jobs]), ("E2EL", [job.e2el_ns for job in jobs])):
        known = sorted(value for value in values if value is not None)
        if known:
            told.append(f"{name} {duration(known[len(known) // 2])}")
    return f"median of all {len(jobs)}: " + (", ".join(told) or "nothing measured")


def _finding(finding: Finding, number: int, style: Style) -> Iterator[str]:
    cost = f"[{duration(finding.cost_ns)}] " if finding.cost_ns is not None else ""
    yield from style.wrap(f"{cost}{finding.sentence}", indent="    ", first=f"{number:>2}. ")
    seen = textwrap.shorten(f"seen: {finding.evidence}", 2 * (style.width - 4), placeholder=" ...")
    yield from (style.paint(line, _DIM) for line in style.wrap(seen, indent="    ", first="    "))


def _rate(tokens_per_s: float | None) -> str:
    return f" at {tokens_per_s:.1f}/s" if tokens_per_s is not None else ""
