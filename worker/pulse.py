"""A clock that notices when the process was not given time: frozen by the platform, then thawed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BEAT_S = 1.0
GAP_S = 5.0

Clocks = tuple[float, ...]


def clocks() -> Clocks:
    """Return the clocks that go on while a process is frozen, in seconds.

    The wall clock is set anew when a snapshot is restored; the second goes on while the whole machine sleeps.
    """
    return time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)


class Pulse:
    """Beats once a second in a thread of its own; a gap between two beats is a time that was missed.

    A thread, so that an event loop that is busy is not taken for one that was frozen.
    """

    def __init__(self, now: Callable[[], Clocks] = clocks, *, gap_s: float = GAP_S) -> None:
        """Begin to count at `now()`; a gap longer than `gap_s` seconds is noticed."""
        self._now = now
        self._gap_s = gap_s
        self._last = now()
        self._missed_s = 0.0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to beat."""
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def stop(self) -> None:
        """Beat no more; safe to call at any time."""
        self._stopped.set()

    def beat(self) -> None:
        """Compare the clocks with those of the last beat."""
        with self._lock:
            now = self._now()
            # A clock that was set back says nothing.
            gap_s = max(after - before for before, after in zip(self._last, now, strict=True))
            self._last = now
            if gap_s > self._gap_s:
                self._missed_s = max(self._missed_s, gap_s)

    def missed_s(self) -> float:
        """Return the longest gap since the last call, 0 when there was none; it is told once."""
        # Whoever asks may run before the thread does.
        self.beat()
        with self._lock:
            missed_s, self._missed_s = self._missed_s, 0.0
        return missed_s

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_S):
            self.beat()
