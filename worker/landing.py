"""A file from slow or distant storage onto local disk at the storage's speed, whole or not at all."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path

from worker import bounded, known_digest
from worker.bounded import Stalled
from worker.digest import TrailingDigest
from worker.glimpse import FirstGlimpse
from worker.known_digest import Damaged
from worker.opened import direct_latency_s
from worker.pace import Pace, first_method
from worker.partial import Partial
from worker.progress import Meter
from worker.readers import BlockCopy, Method
from worker.storage import cached_share

BEFORE = "landed before"


@dataclass(frozen=True)
class Terms:
    """What a landing must keep to.

    `sha256` (hex) is checked on the way when given. After `stall_s` seconds in which nothing moves the landing is given
    up. `probe_bytes` are copied before the method is judged. `reread_bytes` is how much of the copy the page cache will
    not keep. `cached_share` is how much of the source is in the page cache (0 to 1), None when that is still to be
    found out.
    """

    sha256: str | None = None
    stall_s: float = 30.0
    probe_bytes: int = 256 << 20
    reread_bytes: int = 0
    cached_share: float | None = None


USUAL = Terms()


@dataclass(frozen=True)
class Landed:
    """What a landing did: bytes, seconds, and how the file was read."""

    path: Path
    size_bytes: int
    took_s: float
    method: str


@dataclass(frozen=True)
class _Source:
    """What the file was before its first byte was read."""

    stat: os.stat_result
    method: Method
    cold_share: float
    first: FirstGlimpse | None

    @classmethod
    def look(cls, path: Path, terms: Terms) -> _Source:
        stat = path.stat()
        # Only what is long enough to be judged is worth a glimpse.
        first = FirstGlimpse(path) if stat.st_size > 2 * terms.probe_bytes else None
        cached = cached_share(path) if terms.cached_share is None else terms.cached_share
        return cls(stat, first_method(direct_latency_s(path)), 1.0 - cached, first)


def land(source: Path, target: Path, terms: Terms = USUAL, *, meter: Meter | None = None) -> Landed:
    """Copy `source` to `target` on local disk.

    A target of the same size and time of change is the same file, landed before. Two landings of one target wait for
    each other. `meter` is told how far it is, and may stop it.

    Raises:
        OSError: reading or writing failed; Stalled when storage does not answer.
        Slower: reading in place is faster.
        Damaged: the digest is not `terms.sha256`.
        Halted: `meter` said so.
        In every case `target` is as it was, and nothing else is left.
    """
    began_s = time.monotonic()
    found = bounded.call(lambda: _Source.look(source, terms), terms.stall_s, str(source))
    told = meter or Meter(found.stat.st_size)
    partial = Partial.begin(target, stall_s=terms.stall_s, check=lambda: told.advance(0))
    try:
        told.advance(0)
        method = BEFORE
        if not _landed_before(target, found.stat, terms.sha256, told):
            partial.reserve(found.stat.st_size)
            method = _Transfer(source, found, partial, terms).run(told)
            partial.publish(found.stat.st_mtime_ns)
        return Landed(target, found.stat.st_size, time.monotonic() - began_s, method)
    finally:
        partial.discard()


def _landed_before(target: Path, wanted: os.stat_result, sha256: str | None, meter: Meter) -> bool:
    try:
        there = target.stat()
    except FileNotFoundError:
        return False
    same = (there.st_size, there.st_mtime_ns) == (wanted.st_size, wanted.st_mtime_ns)
    # Hashing is no progress of the copy, but may be stopped like it.
    return same and (sha256 is None or known_digest.computed(target, lambda _: meter.advance(0)) == sha256)


class _Transfer:
    """One run of bytes from a source into a partial file: what moves, what watches it, what verifies it."""

    def __init__(self, source: Path, found: _Source, partial: Partial, terms: Terms) -> None:
        self._source = source
        self._found = found
        self._terms = terms
        size_bytes = found.stat.st_size
        self._digest = TrailingDigest(partial.fd, size_bytes) if terms.sha256 is not None else None
        moved = self._digest.wrote if self._digest is not None else lambda *_: None
        self._copy = BlockCopy(source, partial.fd, size_bytes, moved, growing=self._digest is not None)

    def run(self, meter: Meter) -> str:
        """Move every byte and verify it; return the method's name."""

        def watch() -> None:
            meter.reach(self._copy.tally.moved_bytes)
            self._require_movement()

        first = self._found.first
        pace = Pace(
            self._copy,
            cold_share=self._found.cold_share,
            probe_bytes=self._terms.probe_bytes,
            reread_bytes=self._terms.reread_bytes,
            in_place=lambda: first.rate if first else None,
        )
        try:
            method = pace.drive(watch, self._found.method)
            self._require_whole()
            meter.reach(self._copy.size_bytes)
            self._require_unchanged()
            self._require_digest(meter)
        finally:
            if self._digest is not None:
                self._digest.abandon()
        return str(method)

    def _require_movement(self) -> None:
        if time.monotonic() - self._copy.moved_at_s > self._terms.stall_s:
            moved = f"{self._copy.tally.moved_bytes:,} of {self._copy.size_bytes:,} bytes"
            raise Stalled(f"{self._source}: nothing moved for {self._terms.stall_s:g} s after {moved}")

    def _require_whole(self) -> None:
        moved_bytes, size_bytes = self._copy.tally.moved_bytes, self._copy.size_bytes
        if moved_bytes != size_bytes:
            # A reader that dies of what it is not made for, such as no memory, leaves a hole.
            raise OSError(errno.EIO, f"{moved_bytes:,} of {size_bytes:,} bytes were copied", str(self._source))

    def _require_unchanged(self) -> None:
        before = self._found.stat
        after = bounded.call(self._source.stat, self._terms.stall_s, str(self._source))
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise OSError(errno.EBUSY, "the file changed while it was read", str(self._source))

    def _require_digest(self, meter: Meter) -> None:
        wanted = self._terms.sha256
        if self._digest is None or wanted is None:
            return
        found = self._digest.result(lambda: meter.advance(0))
        if found != wanted:
            raise Damaged(str(self._source), found, wanted)
