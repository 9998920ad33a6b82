"""Nanoseconds as columns: numbers that add up after rounding, and bars on a shared axis."""

from __future__ import annotations

from dataclasses import dataclass

_MS_NS = 1_000_000
# Below this total, milliseconds read better than seconds.
_SECONDS_FROM_NS = 10_000 * _MS_NS
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Scale:
    """A window in nanoseconds, drawn `cells` characters wide."""

    start_ns: int
    end_ns: int
    cells: int
    ascii_only: bool = False
    folded: tuple[int, int] = (0, 0)
    """A piece of time, nanoseconds since 1970, that takes no place in the drawing."""

    @property
    def unit(self) -> str:
        """The unit of every number, `ms` or `s`."""
        return "s" if self.end_ns - self.start_ns >= _SECONDS_FROM_NS else "ms"

    def ms(self, at_ns: int) -> int:
        """Return a moment in whole milliseconds after the start.

        Lengths are differences of these, never rounded themselves: so the lengths of pieces that follow one another add
        up to the length of the whole in print, too.
        """
        return (at_ns - self.start_ns + _MS_NS // 2) // _MS_NS

    def text(self, ms: int) -> str:
        """Print milliseconds in the window's unit."""
        return f"{ms / 1000:.3f}" if self.unit == "s" else f"{ms}"

    def moment(self, at_ns: int) -> str:
        """Print a moment, counted from the start."""
        return self.text(self.ms(at_ns))

    def length(self, start_ns: int, end_ns: int) -> str:
        """Print the time between two moments."""
        return self.text(self.ms(end_ns) - self.ms(start_ns))

    def bar(self, start_ns: int, end_ns: int, fill: str) -> str:
        """Draw a stretch with one character per cell; the shortest is still visible. At most `cells` wide."""
        eighths = 1 if self.ascii_only or fill != "█" else 8
        first = min(self._drawn(start_ns) * self.cells // self._whole, self.cells - 1)
        last = -(-self._drawn(end_ns) * self.cells * eighths // self._whole)
        whole, part = divmod(max(last - first * eighths, 1), eighths)
        return " " * first + fill * whole + (_EIGHTHS[part] if part else "")

    def axis(self) -> str:
        """Draw the axis above the bars: 0, round marks up to a fold or the end, and the unit."""
        step_ms = next((step for step in _round_steps() if self._whole / step <= self.cells / 9 * _MS_NS), 0)
        last_ms = self.ms(self.folded[0] if self.folded[1] else self.end_ns)
        line = "0"
        for mark_ms in range(step_ms, last_ms, step_ms) if step_ms else ():
            column = mark_ms * _MS_NS * self.cells // self._whole
            label = self.text(mark_ms).rstrip("0").rstrip(".") if self.unit == "s" else self.text(mark_ms)
            if column > len(line) and column + len(label) < self.cells - len(self.unit):
                line = line.ljust(column) + label
        return line.ljust(self.cells - len(self.unit)) + self.unit

    @property
    def _whole(self) -> int:
        return max(1, self.drawn_ns)

    @property
    def drawn_ns(self) -> int:
        """How much time the drawing shows."""
        return self._drawn(self.end_ns)

    def _drawn(self, at_ns: int) -> int:
        fold_start, fold_end = self.folded
        return at_ns - self.start_ns - min(max(at_ns - fold_start, 0), fold_end - fold_start)


def _round_steps() -> list[int]:
    return [factor * 10**power for power in range(9) for factor in (1, 2, 5)]


def duration(took_ns: int) -> str:
    """Print a length for a sentence: `12.3 ms`, `812 ms`, `3.21 s`."""
    ms = took_ns / 1e6
    if abs(ms) >= 1000:  # noqa: PLR2004 - a second
        return f"{ms / 1000:.2f} s"
    return f"{ms:.1f} ms" if abs(ms) < 100 else f"{ms:.0f} ms"  # noqa: PLR2004 - three digits are enough
