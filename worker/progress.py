"""How far a long step is, told at most once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REPORT_INTERVAL_S = 1.0


class Halted(Exception):
    """A long step was stopped from outside; the message says why."""


@dataclass(frozen=True)
class Progress:
    """How far a transfer is; bytes and bytes per second."""

    done_bytes: int
    total_bytes: int
    rate_bytes_per_s: float

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the present rate, or None while there is no rate."""
        left = self.total_bytes - self.done_bytes
        return left / self.rate_bytes_per_s if self.rate_bytes_per_s > 0 else None

    def fields(self) -> dict[str, Any]:
        """Return the figures as the event has them."""
        return {
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "rate_bytes_per_s": round(self.rate_bytes_per_s),
            "eta_s": self.eta_s and round(self.eta_s, 1),
        }

    def __str__(self) -> str:
        """Return the figures for a person at a terminal."""
        share = self.done_bytes / self.total_bytes if self.total_bytes else 1.0
        left = "" if self.eta_s is None else f", {self.eta_s:.0f} s left"
        done, total, rate = (value / 1e6 for value in (self.done_bytes, self.total_bytes, self.rate_bytes_per_s))
        return f"{share:4.0%} of {total:,.1f} MB ({done:,.1f} MB) at {rate:,.1f} MB/s{left}"


class Meter:
    """Counts the bytes of one long step from any thread and tells how far it is.

    Whoever does the step calls `advance`; `halt` is asked each time and stops the step by raising Halted.
    """

    def __init__(
        self,
        total_bytes: int,
        report: Callable[[Progress], None] = lambda _: None,
        *,
        halt: Callable[[], None] = lambda: None,
        already_bytes: int = 0,
    ) -> None:
        """Begin now; bytes that were there already count as done, but not for the rate."""
        self.total_bytes = total_bytes
        self._report = report
        self._halt = halt
        self._already_bytes = self._done_bytes = already_bytes
        self._began_s = self._reported_s = time.monotonic()
        self._lock = threading.Lock()

    @property
    def done_bytes(self) -> int:
        """Bytes counted so far."""
        return self._done_bytes

    def advance(self, count: int) -> None:
        """Count bytes that are done, or with a negative `count` that were lost again."""
        self._halt()
        with self._lock:
            self._done_bytes += count
            now_s = time.monotonic()
            if now_s - self._reported_s < REPORT_INTERVAL_S:
                return
            self._reported_s = now_s
            done_bytes = self._done_bytes
        moved_bytes = max(0, done_bytes - self._already_bytes)
        self._report(Progress(done_bytes, self.total_bytes, moved_bytes / max(now_s - self._began_s, 1e-9)))

    def reach(self, done_bytes: int) -> None:
        """Count up to `done_bytes`, for steps that say where they are and not how far they went."""
        self.advance(done_bytes - self._done_bytes)
