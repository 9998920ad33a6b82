"""A file from slow or distant storage onto local disk at the storage's speed."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from worker.digest import TrailingDigest

READERS = 4
BLOCK_BYTES = 4 << 20
# Buffered reading in parallel makes a filesystem with read-ahead of its own 4 times slower: it is tried only when the
# first part came slowly, on one part, and kept only if it was faster.
PROBE_BYTES = 256 << 20
SLOW_BYTES_PER_S = 200e6
BUFFERED_READERS = 16
REPORT_INTERVAL_S = 1.0


class Cancelled(Exception):
    """The landing was told to stop; nothing of it is left."""


class Damaged(ValueError):
    """The bytes do not have the digest they should have; nothing of them is left."""


@dataclass(frozen=True)
class Landed:
    """What a landing did: bytes, seconds, and how the file was read."""

    path: Path
    size_bytes: int
    took_s: float
    method: str


@dataclass
class _Copy:
    """One landing in progress: shared by its reader threads."""

    source: Path
    target_fd: int
    size_bytes: int
    cancelled: threading.Event
    report: Callable[[int, int, float], None]
    began_s: float = field(default_factory=time.monotonic)
    done_bytes: int = 0
    reported_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    failure: OSError | None = None
    digest: TrailingDigest | None = None

    def advance(self, start: int, end: int) -> None:
        if self.digest is not None:
            self.digest.wrote(start, end)
        with self.lock:
            self.done_bytes += end - start
            now_s = time.monotonic()
            if now_s - self.reported_s < REPORT_INTERVAL_S:
                return
            self.reported_s = now_s
            done_bytes = self.done_bytes
        self.report(done_bytes, self.size_bytes, done_bytes / max(now_s - self.began_s, 1e-9))

    @property
    def halted(self) -> bool:
        return self.cancelled.is_set() or self.failure is not None


def land(
    source: Path,
    target: Path,
    *,
    sha256: str | None = None,
    cancelled: threading.Event | None = None,
    report: Callable[[int, int, float], None] = lambda *_: None,
) -> Landed:
    """Copy `source` to `target`, which appears whole or not at all.

    `sha256` (hex) is checked on the way when given. `report` gets bytes done, bytes in all, and bytes per second, about
    once a second.

    Raises:
        OSError: reading or writing failed; errno says why.
        Damaged: the digest is not `sha256`.
        Cancelled: `cancelled` was set.
    """
    size_bytes = source.stat().st_size
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.partial")
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    copy = _Copy(source, fd, size_bytes, cancelled or threading.Event(), report)
    try:
        _reserve(fd, size_bytes)
        if sha256 is not None:
            copy.digest = TrailingDigest(fd, size_bytes)
        method = _transfer(copy)
        if source.stat().st_size != size_bytes:
            raise OSError(errno.EIO, "the file changed its size while it was read", str(source))
        if copy.digest is not None and (found := copy.digest.result()) != sha256:
            raise Damaged(f"{source}: the bytes have sha256 {found[:12]}…, they should have {str(sha256)[:12]}…")
        partial.replace(target)
        return Landed(target, size_bytes, time.monotonic() - copy.began_s, method)
    finally:
        if copy.digest is not None:
            copy.digest.abandon()
        os.close(fd)
        partial.unlink(missing_ok=True)


def _reserve(fd: int, size_bytes: int) -> None:
    """Claim the disk space now, so that a full disk is found before the first byte and not after the last."""
    if size_bytes == 0:
        return
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as exc:
        if exc.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
        os.ftruncate(fd, size_bytes)


def _transfer(copy: _Copy) -> str:
    """Move every byte; return the name of the method that moved most of them."""
    direct = _supports_direct(copy.source)
    if direct:
        _run(copy, 0, copy.size_bytes, readers=READERS, direct=True)
        return f"O_DIRECT, {READERS} readers"
    first = min(PROBE_BYTES, copy.size_bytes)
    single_rate = _run(copy, 0, first, readers=1, direct=False)
    second = min(2 * PROBE_BYTES, copy.size_bytes)
    readers = 1
    if single_rate < SLOW_BYTES_PER_S and second > first:
        many_rate = _run(copy, first, second, readers=BUFFERED_READERS, direct=False)
        first = second
        readers = BUFFERED_READERS if many_rate > single_rate else 1
    _run(copy, first, copy.size_bytes, readers=readers, direct=False)
    return f"buffered, {readers} reader{'s' if readers > 1 else ''}"


def _supports_direct(source: Path) -> bool:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_DIRECT)
    except OSError as exc:
        if exc.errno == errno.EINVAL:
            return False
        raise
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as block:
            os.preadv(fd, [block], 0)
    except OSError as exc:
        if exc.errno == errno.EINVAL:
            return False
        raise
    finally:
        os.close(fd)
    return True


def _run(copy: _Copy, start: int, end: int, *, readers: int, direct: bool) -> float:
    """Copy [start, end) with `readers` threads; return bytes per second."""
    offsets: queue.SimpleQueue[int] = queue.SimpleQueue()
    for offset in range(start, end, BLOCK_BYTES):
        offsets.put(offset)
    began_s = time.monotonic()
    threads = [
        threading.Thread(target=_read, args=(copy, offsets, end, direct), name=f"landing-{i}", daemon=True)
        for i in range(min(readers, offsets.qsize()))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        # A read that hangs in the kernel cannot be interrupted; the daemon thread is left behind instead.
        while thread.is_alive() and not copy.cancelled.is_set():
            thread.join(0.05)
    if copy.failure is not None:
        raise copy.failure
    if copy.cancelled.is_set():
        raise Cancelled(str(copy.source))
    return (end - start) / max(time.monotonic() - began_s, 1e-9)


def _read(copy: _Copy, offsets: queue.SimpleQueue[int], end: int, direct: bool) -> None:  # noqa: FBT001 - a thread's target
    try:
        # A thread that hangs in a read may come back when everything is closed: its write must not hit another file
        # that has got the same descriptor by then.
        target_fd = os.dup(copy.target_fd)
        source_fd = os.open(copy.source, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        try:
            # O_DIRECT needs an aligned buffer; anonymous mappings are aligned to pages.
            with mmap.mmap(-1, BLOCK_BYTES) as block, memoryview(block) as view:
                while not copy.halted:
                    try:
                        offset = offsets.get_nowait()
                    except queue.Empty:
                        return
                    _move(copy, (source_fd, target_fd), view, offset, min(offset + BLOCK_BYTES, end))
        finally:
            os.close(source_fd)
            os.close(target_fd)
    except OSError as exc:
        copy.failure = copy.failure or exc


def _move(copy: _Copy, fds: tuple[int, int], view: memoryview, start: int, end: int) -> None:
    source_fd, target_fd = fds
    offset = start
    while offset < end and not copy.halted:
        count = min(_pread(copy.source, source_fd, view, offset), end - offset)
        if count <= 0:
            raise OSError(errno.EIO, f"the file ends at byte {offset:,} of {copy.size_bytes:,}", str(copy.source))
        written = 0
        while written < count:
            written += os.pwrite(target_fd, view[written:count], offset + written)
        copy.advance(offset, offset + count)
        offset += count


def _pread(source: Path, fd: int, view: memoryview, offset: int) -> int:
    try:
        return os.preadv(fd, [view], offset)
    except OSError as exc:
        # After a short read the offset is not aligned any more: read on through the page cache up to the next block.
        if exc.errno != errno.EINVAL or offset % mmap.PAGESIZE == 0:
            raise
    with source.open("rb", buffering=0) as file:
        return os.preadv(file.fileno(), [view], offset)


def discard(target: Path) -> None:
    """Remove a landed file and what an interrupted landing of it may have left."""
    with contextlib.suppress(OSError):
        target.unlink(missing_ok=True)
        for partial in target.parent.glob(f".{target.name}.*.partial"):
            partial.unlink(missing_ok=True)
