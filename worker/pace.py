"""Which way of reading a file is the fastest here, found out while copying, and whether copying pays at all."""

from __future__ import annotations

import time
from collections.abc import Callable

from worker.readers import BlockCopy, Method, Tally

# Both keep as many requests open as a FUSE filesystem takes, twelve of 1 MiB. Requests that follow one another make a
# filesystem with a read-ahead of its own use it: a quarter faster where each takes 10 ms. Longer reads, which become
# requests in no order, do without: a tenth cheaper where there is nothing to read ahead for. The line between them was
# found on a MooseFS at 0, 0.5 and 1 ms and FUSE at 0.5.
FAR = Method(readers=12, direct=True, request_bytes=1 << 20)
NEAR = Method(readers=4, direct=True, request_bytes=4 << 20)
NEAR_S = 0.7e-3
# What the server would do by itself, and the only way that never makes a filesystem slower than that.
SINGLE = Method(readers=1, direct=False)
# Three times faster on a filesystem without read-ahead of its own, four times slower on one that has it.
MANY = Method(readers=16, direct=False)
SLOW_BYTES_PER_S = 200e6
# What a local disk gives when the page cache could not keep what was landed.
LOCAL_BYTES_PER_S = 1e9
# Measurements this short scatter: only a clear difference counts.
MARGIN = 1.1
WINDOW_S = 2.0


def first_method(latency_s: float | None) -> Method:
    """Return how to begin where a read past the page cache takes `latency_s`, or cannot be had (None)."""
    if latency_s is None:
        return SINGLE
    return NEAR if latency_s < NEAR_S else FAR


class Slower(Exception):
    """Reading the file where it lies takes less time than copying it; nothing of the copy is left."""


class Pace:
    """Compares a running copy with reading the file in place.

    `probe_bytes` is how much is copied before anything is decided; `reread_bytes` is how much of the copy will have to
    be read from local disk again.
    """

    def __init__(
        self,
        copy: BlockCopy,
        *,
        cold_share: float,
        probe_bytes: int,
        reread_bytes: int,
        in_place: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Watch `copy`, of whose file `cold_share` (0 to 1) is not in the page cache.

        `in_place` tells, once it is known, at how many bytes per second the file is read where it lies.
        """
        self._copy = copy
        self._in_place = in_place
        self._cold_bytes = cold_share * copy.size_bytes
        self._probe_bytes = probe_bytes
        self._reread_s = reread_bytes / LOCAL_BYTES_PER_S
        self._in_place_s: float | None = None

    def drive(self, watch: Callable[[], None], first: Method) -> Method:
        """Copy the whole file, beginning with `first`; return the method that was kept.

        Raises:
            Slower: the copy would be later than reading in place.
            OSError: as the copy raised it.
        """
        method = first
        rate, took_s = self._begin(method, watch)
        # Not worth finding out for less than another probe.
        while rate is None and self._copy.left_bytes > self._probe_bytes:
            rate, took_s = self._begin(method, watch)
        if rate is not None and self._copy.left_bytes > self._probe_bytes:
            rates = self._compared({method: rate}, took_s, watch)
            method = max(rates, key=lambda m: rates[m])
            self._require_worth(rates[method])
        if self._copy.left_bytes:
            self._copy.run(method, self._guarded(watch))
        return method

    def _begin(self, method: Method, watch: Callable[[], None]) -> tuple[float | None, float]:
        """Copy by `method`, after a probe only as long as nothing speaks against it; return as `_try` does.

        To stop and go on costs some round trips to distant storage, so what is fast is not stopped to be compared.
        """
        before, began_s = self._copy.tally, time.monotonic()
        guarded, settled = self._guarded(watch), False

        def judge() -> None:
            nonlocal settled
            if settled:
                guarded()
                return
            watch()
            part = self._copy.tally - before
            if self._copy.left_bytes <= self._probe_bytes:
                settled = True
            elif part.moved_bytes >= self._probe_bytes:
                settled = self._is_clear(method, part, time.monotonic() - began_s)
                if not settled:
                    self._copy.pause()

        return self._try(method, judge, limit_bytes=None)

    def _is_clear(self, method: Method, part: Tally, took_s: float) -> bool:
        """Return whether a part that took `took_s` seconds was fast, and faster than reading in place."""
        in_place, rate = self._in_place(), part.moved_bytes / max(took_s, 1e-9)
        if part.cold_bytes < part.moved_bytes or rate < SLOW_BYTES_PER_S:
            return False
        if method == SINGLE and part.cold_s > 0:
            in_place = part.cold_bytes / part.cold_s
        elif in_place is None or rate < in_place * MARGIN:
            return False
        self._in_place_s = self._cold_bytes / in_place
        self._require_worth(rate)
        return True

    def _compared(self, rates: dict[Method, float], limit_s: float, watch: Callable[[], None]) -> dict[Method, float]:
        for other in (SINGLE, MANY):
            best = max(rates.values())
            if other in rates or (best >= SLOW_BYTES_PER_S and (other == MANY or self._glimpse() * MARGIN < best)):
                continue
            rate, _ = self._try(other, watch, limit_bytes=self._probe_bytes, limit_s=limit_s)
            if rate is not None:
                rates[other] = rate
        return rates

    def _glimpse(self) -> float:
        """Return how fast a little of the file was read in place: enough to see that it would not be faster."""
        rate = self._copy.glimpse()
        self._in_place_s = self._cold_bytes / rate
        return rate

    def _try(
        self, method: Method, watch: Callable[[], None], *, limit_bytes: int | None, limit_s: float | None = None
    ) -> tuple[float | None, float]:
        """Copy by `method` up to a limit, or to the end; return bytes per second and the seconds it took.

        A part that came out of the page cache says nothing about storage: its rate is None.
        """
        before = self._copy.tally
        took_s = self._copy.run(method, watch, limit_bytes=limit_bytes, limit_s=limit_s)
        part = self._copy.tally - before
        if part.cold_bytes < part.moved_bytes or part.cold_s <= 0:
            return None, took_s
        if method == SINGLE:
            self._in_place_s = self._cold_bytes * part.cold_s / part.cold_bytes
        return part.moved_bytes / took_s, took_s

    def _require_worth(self, rate_bytes_per_s: float) -> None:
        if self._in_place_s is None or rate_bytes_per_s <= 0:
            return
        left_bytes = self._copy.size_bytes - self._copy.tally.moved_bytes
        left_s = left_bytes / rate_bytes_per_s + self._reread_s
        if left_s > self._in_place_s * MARGIN:
            raise Slower(f"landing would take {left_s:.1f} s more, reading in place {self._in_place_s:.1f} s")

    def _guarded(self, watch: Callable[[], None]) -> Callable[[], None]:
        """Return `watch` with a look at what the copy waits for.

        It is given up when that has become writing: reading in place does not write.
        """
        began_s, before = time.monotonic(), self._copy.tally

        def look() -> None:
            nonlocal began_s, before
            watch()
            took_s = time.monotonic() - began_s
            if took_s < WINDOW_S:
                return
            part = self._copy.tally - before
            began_s, before = time.monotonic(), self._copy.tally
            if part.write_s > part.read_s:
                self._require_worth(part.moved_bytes / took_s)

        return look
