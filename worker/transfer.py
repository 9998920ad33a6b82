"""One file over many connections: ranges into a preallocated file, resumed where they broke off, and verified."""

from __future__ import annotations

import collections
import http.client
import threading
import time
from dataclasses import dataclass

from worker import bounded
from worker.digest import TrailingDigest
from worker.errors import WorkerError
from worker.http_answer import Busy, TransferFailed
from worker.http_range import Line, Origin, RangeIgnored
from worker.known_digest import Damaged
from worker.progress import Halted, Meter
from worker.resumable import Resumable

_PAUSE_S = 0.05
_BACKOFF_S = (0.25, 8.0)
_WHOLE_ATTEMPTS = 3


@dataclass(frozen=True)
class Terms:
    """How a file is fetched.

    16 connections of 8 MiB ranges fill 1 GB/s at 20 ms and 90 MB/s each. It is given up after `patience_s` seconds of
    failures without a byte, to which waits the server asks for add up to `longest_wait_s`; or when less than
    `floor_bytes_per_s` came for `slow_s` seconds, or less than their part of it over those connections still at work.
    """

    connections: int = 16
    piece_bytes: int = 8 << 20
    patience_s: float = 60.0
    longest_wait_s: float = 300.0
    floor_bytes_per_s: float = 100e3
    slow_s: float = 60.0


USUAL = Terms()


def fetch(origin: Origin, target: Resumable, meter: Meter, *, sha256: str = "", terms: Terms = USUAL) -> str:
    """Bring the missing ranges of `target` from `origin`; return the sha256 of the whole, `sha256` if that is given.

    `meter` counts what is there already as done; it may be one for several files.

    Raises:
        TransferFailed: the origin refuses, is another file, is too slow, or does not recover.
        Damaged: the whole has another digest; `target` is discarded.
        Halted: the meter said so.
        OSError: writing failed.
        But for Damaged, what has arrived is kept in `target`.
    """
    before_bytes = meter.done_bytes - target.there_bytes
    try:
        found = _Transfer(origin, target, meter, terms).run(terms.connections)
    except RangeIgnored:
        found = _fetch_whole(origin, target, meter, terms, before_bytes)
    if sha256 and found != sha256:
        target.discard()
        raise Damaged(target.path.name, found, sha256)
    return found


def _fetch_whole(origin: Origin, target: Resumable, meter: Meter, terms: Terms, before_bytes: int) -> str:
    """Without ranges there is one connection, and no going on where it broke off."""
    for attempt in range(1, _WHOLE_ATTEMPTS + 1):
        target.forget()
        meter.reach(before_bytes)
        try:
            return _Transfer(origin, target, meter, terms, whole=True).run(1)
        except _BrokeOff:
            if attempt == _WHOLE_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


class _BrokeOff(TransferFailed):
    """A connection broke that cannot be taken up again."""


class _Transfer:
    """The pieces still to come, the threads that bring them, and what stops them."""

    def __init__(self, origin: Origin, target: Resumable, meter: Meter, terms: Terms, *, whole: bool = False) -> None:
        self._origin = origin
        self._target = target
        self._meter = meter
        self._terms = terms
        self._whole = whole
        piece_bytes = max(1, target.size_bytes) if whole else terms.piece_bytes
        self._pieces = collections.deque(target.missing(piece_bytes))
        self._digest = TrailingDigest(target.fd, target.size_bytes)
        for start, end in target.ranges:
            self._digest.wrote(start, end)
        self._lines: list[Line] = []
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._moved_s = self._quiet_until_s = time.monotonic()

    def run(self, connections: int) -> str:
        """Bring everything; return the digest of the whole."""
        count = min(connections, len(self._pieces))
        threads = [threading.Thread(target=self._work, name=f"fetch-{i}", daemon=True) for i in range(count)]
        try:
            for thread in threads:
                bounded.start(thread)
            self._watch(threads)
            if self._failure is not None:
                raise self._failure
            if not self._digest.complete:
                raise TransferFailed("the connections ended before everything had come")
            return self._digest.result(lambda: self._meter.advance(0))
        finally:
            self._stop.set()
            for line in list(self._lines):
                line.abort()
            for thread in threads:
                # One that the machine had no room for was never started.
                if thread.ident is not None:
                    thread.join()
            self._digest.abandon()

    def _watch(self, threads: list[threading.Thread]) -> None:
        since_s, since_bytes = time.monotonic(), self._came_bytes
        before_bytes = since_bytes
        for thread in threads:
            while thread.is_alive() and self._failure is None:
                thread.join(_PAUSE_S)
                self._meter.advance(0)
                now_s, came_bytes = time.monotonic(), self._came_bytes
                if came_bytes != before_bytes:
                    # Written or not yet: it may take a slow connection long to fill what is written at once.
                    before_bytes, self._moved_s = came_bytes, now_s
                passed_s = now_s - since_s
                # Time the server asked for says nothing about its speed.
                waited = now_s < self._quiet_until_s
                if passed_s < self._terms.slow_s and not waited:
                    continue
                rate = (came_bytes - since_bytes) / passed_s
                # The last pieces come over few connections.
                busy_share = sum(thread.is_alive() for thread in threads) / len(threads)
                if rate < self._terms.floor_bytes_per_s * busy_share and not waited:
                    raise TransferFailed(f"only {rate / 1e3:.1f} kB/s came for {passed_s:.0f} s")
                since_s, since_bytes = now_s, came_bytes

    @property
    def _came_bytes(self) -> int:
        return sum(line.came_bytes for line in self._lines)

    def _work(self) -> None:
        line = Line(self._origin)
        self._lines.append(line)
        strikes = 0
        try:
            while not self._stop.wait(max(0.0, self._quiet_until_s - time.monotonic())):
                try:
                    start, end = self._pieces.popleft()
                except IndexError:
                    return
                before_bytes = line.came_bytes
                broke_off = self._broke_off(line, start, end, strikes)
                strikes = strikes + 1 if broke_off and line.came_bytes == before_bytes else 0
        except (TransferFailed, Halted, WorkerError, OSError) as exc:
            # Whoever is told how far it is may say that nobody needs it any more.
            self._fail(exc)
        finally:
            line.close()

    def _broke_off(self, line: Line, start: int, end: int, strikes: int) -> bool:
        """Bring one piece; when that fails put its rest back, wait, and return True.

        Raises:
            TransferFailed: it is not worth another attempt.
            OSError: writing failed.
        """
        reached = start

        def write(data: memoryview, offset: int) -> None:
            nonlocal reached
            if self._stop.is_set():
                raise Halted("the transfer has ended")
            try:
                self._target.write(data, offset)
            except OSError as exc:
                # Told from the connection's errors, which are worth another attempt.
                raise _WriteFailed(exc) from exc
            reached = offset + len(data)
            self._digest.wrote(offset, reached)
            self._moved_s = time.monotonic()
            self._meter.advance(len(data))

        try:
            line.fetch(start, end, write)
        except _WriteFailed as exc:
            raise exc.cause from exc
        except (Busy, OSError, http.client.HTTPException) as exc:
            self._put_back(start, reached, end)
            self._wait(exc, strikes)
            return True
        return False

    def _put_back(self, start: int, reached: int, end: int) -> None:
        if self._whole and reached > start:
            raise _BrokeOff("the connection broke, and the server gives no parts of files to go on from")
        self._pieces.appendleft((reached, end))

    def _wait(self, failure: Exception, strikes: int) -> None:
        asked_s = failure.retry_after_s if isinstance(failure, Busy) else None
        if asked_s is not None and asked_s > self._terms.longest_wait_s:
            raise TransferFailed(f"the server wants to be asked again in {asked_s:.0f} s ({failure})")
        patience_s = self._terms.patience_s + (0.0 if asked_s is None else self._terms.longest_wait_s)
        if time.monotonic() - self._moved_s > patience_s:
            raise TransferFailed(f"nothing came for {patience_s:g} s; the last failure: {_said(failure)}")
        first_s, longest_s = _BACKOFF_S
        if asked_s is not None:
            # It means all of us.
            self._quiet_until_s = max(self._quiet_until_s, time.monotonic() + asked_s)
        # Also when it asks for no wait at all.
        self._stop.wait(min(longest_s, first_s * 2.0**strikes))

    def _fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._stop.set()


class _WriteFailed(Exception):
    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _said(failure: Exception) -> str:
    return f"{failure}" if isinstance(failure, Busy) else f"{type(failure).__name__}: {failure}".strip(": ")
