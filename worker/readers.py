"""Reader threads that move a file block by block, and the count of what they did."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker import bounded, glimpse
from worker.opened import Opened
from worker.stretches import BLOCK_BYTES, CHUNK_BYTES, Stretches

_PAUSE_S = 0.05
# How long threads that were told to stop are waited for; one that hangs in the kernel is left behind.
_GRACE_S = 1.0


@dataclass(frozen=True)
class Method:
    """How a file is read: by how many threads, past the page cache or through it, and how much in one request."""

    readers: int
    direct: bool
    request_bytes: int = BLOCK_BYTES

    def __str__(self) -> str:
        """Return it in words."""
        return f"{'O_DIRECT' if self.direct else 'buffered'}, {self.readers} reader{'s' if self.readers > 1 else ''}"


@dataclass(frozen=True)
class Tally:
    """What was done so far; seconds of reading and writing are summed over threads.

    `cold` is what was read from storage and not from the page cache.
    """

    moved_bytes: int = 0
    cold_bytes: int = 0
    cold_s: float = 0.0
    read_s: float = 0.0
    write_s: float = 0.0

    def __sub__(self, earlier: Tally) -> Tally:
        """Return what was done since `earlier`."""
        return Tally(
            self.moved_bytes - earlier.moved_bytes,
            self.cold_bytes - earlier.cold_bytes,
            self.cold_s - earlier.cold_s,
            self.read_s - earlier.read_s,
            self.write_s - earlier.write_s,
        )


@dataclass(frozen=True)
class _Reader:
    """What one thread works with: the file it reads and how, room for a block, and where the block is written."""

    source: Opened
    request_bytes: int
    view: memoryview
    target_fd: int


class BlockCopy:
    """Moves the bytes of a file in blocks, in one run after another, each by a method of its own.

    `moved` is called by the threads with the start and end of what they have written.
    """

    def __init__(
        self,
        source: Path,
        target_fd: int,
        size_bytes: int,
        moved: Callable[[int, int], None],
        *,
        growing: bool = False,
    ) -> None:
        """Prepare to copy `size_bytes` of `source` into the file open as `target_fd`.

        `growing` makes the target complete from its start on, for who reads it meanwhile, at the cost of some speed.
        """
        self.source = source
        self.size_bytes = size_bytes
        self.tally = Tally()
        self.moved_at_s = time.monotonic()
        self._target_fd = target_fd
        self._moved = moved
        self._lock = threading.Lock()
        self._stretches = Stretches(size_bytes)
        self._stretch_bytes = CHUNK_BYTES if growing else None
        self._kept_bytes = 0
        self._deadline_s: float | None = None
        self._halted = False
        self._failure: OSError | None = None

    @property
    def left_bytes(self) -> int:
        """How many bytes no thread has taken on yet."""
        return self._stretches.left_bytes

    def glimpse(self) -> float:
        """Return how fast a little of what comes next is read in place, in bytes per second; it is copied all the same.

        Raises:
            OSError: reading failed; Stalled when it takes too long.
        """
        return glimpse.rate(self.source, self._stretches.first)

    def pause(self) -> None:
        """End the run, after the blocks that its threads have taken on."""
        self._kept_bytes = self.size_bytes

    def run(
        self,
        method: Method,
        watch: Callable[[], None],
        *,
        limit_bytes: int | None = None,
        limit_s: float | None = None,
    ) -> float:
        """Copy on with `method` up to a limit, or to the end; return the seconds it took.

        `watch` is called some times a second; what it raises stops the copy.

        Raises:
            OSError: reading or writing failed, or a thread could not be started.
        """
        began_s = self.moved_at_s = time.monotonic()
        self._kept_bytes = 0 if limit_bytes is None else max(0, self.left_bytes - limit_bytes)
        self._deadline_s = None if limit_s is None else began_s + limit_s
        self._stretches.share_out(method.readers, most_bytes=self._stretch_bytes)
        count = min(method.readers, -(-(self.left_bytes - self._kept_bytes) // BLOCK_BYTES))
        threads = [
            threading.Thread(target=self._work, args=(method, i), name=f"landing-{i}", daemon=True)
            for i in range(count)
        ]
        finished = False
        try:
            for thread in threads:
                bounded.start(thread)
            for thread in threads:
                while thread.is_alive() and self._failure is None:
                    thread.join(_PAUSE_S)
                    watch()
            finished = self._failure is None
        finally:
            if not finished:
                self._halt(threads)
        if self._failure is not None:
            raise self._failure
        return max(time.monotonic() - began_s, 1e-9)

    def _halt(self, threads: list[threading.Thread]) -> None:
        self._halted = True
        until_s = time.monotonic() + _GRACE_S
        for thread in threads:
            # One that the machine had no room for was never started.
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))

    def _take(self, reader: int) -> tuple[int, int] | None:
        with self._lock:
            late = self._deadline_s is not None and time.monotonic() >= self._deadline_s
            most_bytes = self.left_bytes - self._kept_bytes
            return None if self._halted or late or most_bytes <= 0 else self._stretches.take(reader, most_bytes)

    def _work(self, method: Method, number: int) -> None:
        try:
            with contextlib.ExitStack() as stack:
                # A thread that hangs may come back when everything is closed: its write must not hit another file
                # that has got the same descriptor by then.
                target_fd = os.dup(self._target_fd)
                stack.callback(os.close, target_fd)
                source = stack.enter_context(Opened(self.source, direct=method.direct))
                if method.readers == 1 and not method.direct:
                    # As llama.cpp does: it doubles the kernel's read-ahead.
                    os.posix_fadvise(source.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                cache = source.page_cache(self.size_bytes)
                view = stack.enter_context(memoryview(stack.enter_context(_buffer())))
                reader = _Reader(source, method.request_bytes, view, target_fd)
                while (span := self._take(number)) is not None:
                    cold = cache is None or cache.share(*span) < 1.0
                    self._move(reader, span, cold=cold)
        except OSError as exc:
            self._failure = self._failure or exc

    def _move(self, reader: _Reader, span: tuple[int, int], *, cold: bool) -> None:
        offset, end = span
        while offset < end and not self._halted:
            began_s = time.monotonic()
            count = self._read(reader, (offset, end), cold=cold)
            read_s = time.monotonic() - began_s
            written = 0
            while written < count:
                written += os.pwrite(reader.target_fd, reader.view[written:count], offset + written)
            write_s = time.monotonic() - began_s - read_s
            self._moved(offset, offset + count)
            offset += count
            self._count(count, (read_s, write_s), cold=cold)

    def _read(self, reader: _Reader, span: tuple[int, int], *, cold: bool) -> int:
        """Read up to a block from the start of `span`, in requests that follow one another; return how much it was."""
        (start, end), source = span, reader.source
        offset = start
        while offset < min(end, start + len(reader.view)) and not self._halted:
            # After a short read the offset may not be aligned any more: then read on through the page cache.
            aligned = offset % mmap.PAGESIZE == 0
            source_fd = source.fd if cold and aligned else source.plain_fd
            at = offset - start
            # Not kept by the traceback of a failed read: a buffer that is looked at cannot be closed.
            with reader.view[at : at + reader.request_bytes] as room:
                count = min(os.preadv(source_fd, [room], offset), end - offset)
            if count <= 0:
                raise OSError(errno.EIO, f"it ends at byte {offset:,} of {self.size_bytes:,}", str(self.source))
            offset += count
            self.moved_at_s = time.monotonic()
        return offset - start

    def _count(self, count: int, seconds: tuple[float, float], *, cold: bool) -> None:
        read_s, write_s = seconds
        with self._lock:
            t = self.tally
            cold_bytes, cold_s = (count, read_s) if cold else (0, 0.0)
            self.tally = Tally(
                t.moved_bytes + count,
                t.cold_bytes + cold_bytes,
                t.cold_s + cold_s,
                t.read_s + read_s,
                t.write_s + write_s,
            )
            self.moved_at_s = time.monotonic()


def _buffer() -> mmap.mmap:
    """Return room for a block, aligned to pages as O_DIRECT needs it, of few large pages where the kernel has them.

    A shared mapping, which is Python's default, gets small ones, each of which a direct read has to look up.
    """
    buffer = mmap.mmap(-1, BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer
