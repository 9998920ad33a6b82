"""Measured values as a picture: one bar a row, whiskers for the spread, readable on light and on dark pages."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _LABELS, _VALUES, _MARGIN = 880, 200, 130, 16
_ROW, _BAR, _TOP = 34, 16, 46
_LINE = 17
_NOTE_LETTERS, _REASON_LETTERS = 125, 92
_TICKS = 6
_STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
    .title { font-weight: 600; font-size: 15px }
    .small { font-size: 11px; fill: #59636e }
    .bar { fill: #0969da }
    .first { fill: #8c959f }
    .grid { stroke: #d1d9e0; stroke-width: 1 }
    .spread { stroke: #1f2328; stroke-width: 1.5; fill: none }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      .bar { fill: #4493f8 }
      .first { fill: #656c76 }
      .grid { stroke: #3d444d }
      .spread { stroke: #f0f6fc }
    }
"""


@dataclass(frozen=True)
class Bar:
    """One row: median, least and most in seconds, or `reason` why there are none."""

    label: str
    median: float = 0.0
    least: float = 0.0
    most: float = 0.0
    reason: str = ""


def draw(title: str, notes: Sequence[str], bars: Sequence[Bar]) -> str:
    """Return an SVG document; the first bar, which the others are compared with, has a colour of its own."""
    highest = max((bar.most for bar in bars), default=0.0) or 1.0
    scale = (_WIDTH - _LABELS - _VALUES - _MARGIN) / highest
    bottom = _TOP + _ROW * len(bars)
    lines = [line for note in notes for line in textwrap.wrap(note, _NOTE_LETTERS)]
    height = bottom + 28 + _LINE * len(lines) + _MARGIN // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        f"  <title>{_quoted(title)}</title>",
        f"  <style>{_STYLE}  </style>",
        _text(_MARGIN, 26, title, "title"),
        *_grid(highest, scale, bottom),
    ]
    for number, bar in enumerate(bars):
        parts += _row(bar, _TOP + _ROW * number, scale, "bar" if number else "first")
    parts += [_text(_MARGIN, bottom + 34 + _LINE * number, line, "small") for number, line in enumerate(lines)]
    return "\n".join([*parts, "</svg>", ""])


def _grid(highest: float, scale: float, bottom: int) -> Iterator[str]:
    step = _nice(highest / _TICKS)
    for number in range(math.floor(highest / step + 1e-9) + 1):
        x = _LABELS + number * step * scale
        yield f'  <line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield _text(x, bottom + 14, f"{number * step:g} s", "small", anchor="middle")


def _nice(step: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9)))


def _row(bar: Bar, y: int, scale: float, kind: str) -> Iterator[str]:
    middle = y + _ROW / 2
    yield _text(_MARGIN, middle + 4, bar.label)
    if bar.reason:
        yield _text(_LABELS + 4, middle + 4, textwrap.shorten(bar.reason, _REASON_LETTERS, placeholder=" …"), "small")
        return
    left, right = (_LABELS + value * scale for value in (bar.least, bar.most))
    place = f'x="{_LABELS}" y="{middle - _BAR / 2:g}" width="{bar.median * scale:.1f}" height="{_BAR}" rx="2"'
    told = f"{bar.label}: median {bar.median:.3f} s, from {bar.least:.3f} to {bar.most:.3f} s"
    yield f'  <rect class="{kind}" {place}><title>{_quoted(told)}</title></rect>'
    ends = "".join(f"M{x:.1f} {middle - 5:g}V{middle + 5:g}" for x in (left, right))
    yield f'  <path class="spread" d="M{left:.1f} {middle:g}H{right:.1f}{ends}"/>'
    end = _WIDTH - _MARGIN
    yield _text(end, middle - 1, f"{bar.median:.2f} s", anchor="end")
    yield _text(end, middle + 12, f"{bar.least:.2f} to {bar.most:.2f}", "small", anchor="end")


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'  <text x="{x:g}" y="{y:g}"{named}{placed}>{_quoted(text)}</text>'


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})
