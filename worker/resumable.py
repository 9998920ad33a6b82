"""A file that arrives in pieces over several lives of the process: the bytes, and a journal of which are there."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

# What a filesystem says that cannot reserve room.
_NO_RESERVATION = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})


class Resumable:
    """A preallocated file named by what it will be, and the ranges of it that are written; one writer at a time.

    A killed writer leaves both; the next one goes on from there. The journal may say less than the file has, and after
    a crash of the machine more: only the digest of the whole says that the file is right.
    """

    def __init__(self, folder: Path, key: str, size_bytes: int) -> None:
        """Open the file that stands for `key` in `folder`, or begin it; raise OSError, of a full disk at once."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{key}.data"
        self.size_bytes = size_bytes
        self._journal = folder / f"{key}.ranges"
        self._lock = threading.Lock()
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._journal_fd = -1
        try:
            if os.fstat(self.fd).st_size != size_bytes:
                # Begun for another size, or before its room was claimed.
                self._journal.unlink(missing_ok=True)
                _reserve(self.fd, size_bytes, self.path)
            self._journal_fd = os.open(self._journal, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._ranges = _merged(_read(self._journal), size_bytes)
            # A torn last line must not swallow the next one.
            os.write(self._journal_fd, b"\n")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return itself, open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; what has arrived stays for the next writer."""
        self.close()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """What was there when the file was opened: [start, end) in order, not touching."""
        return list(self._ranges)

    @property
    def there_bytes(self) -> int:
        """How much was there when the file was opened."""
        return sum(end - start for start, end in self._ranges)

    def missing(self, piece_bytes: int) -> list[tuple[int, int]]:
        """Return the gaps in order, cut into pieces of at most `piece_bytes`."""
        gaps = []
        at = 0
        for start, end in [*self._ranges, (self.size_bytes, self.size_bytes)]:
            gaps += [(piece, min(piece + piece_bytes, start)) for piece in range(at, start, piece_bytes)]
            at = end
        return gaps

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at `offset` and note them; safe from several threads for ranges that do not overlap."""
        written = 0
        while written < len(data):
            written += os.pwrite(self.fd, data[written:], offset + written)
        os.write(self._journal_fd, b"%d %d\n" % (offset, offset + written))

    def forget(self) -> None:
        """Take nothing of what is there for right any more."""
        os.ftruncate(self._journal_fd, 0)
        self._ranges = []

    def close(self) -> None:
        """Close the files and keep them."""
        with self._lock:
            for fd in (self.fd, self._journal_fd):
                if fd >= 0:
                    os.close(fd)
            self.fd = self._journal_fd = -1

    def finish(self) -> Path:
        """Return the path of the whole file, which is the caller's now; the journal is gone."""
        self.close()
        self._journal.unlink(missing_ok=True)
        return self.path

    def discard(self) -> None:
        """Remove everything."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)


def _read(journal: Path) -> list[tuple[int, int]]:
    """Return the ranges of a journal; what is torn or senseless is left out."""
    ranges = []
    for line in journal.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):
            start, end = map(int, line.split(b" "))
            ranges.append((start, end))
    return ranges


def _merged(ranges: list[tuple[int, int]], size_bytes: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if not 0 <= start < end <= size_bytes:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _reserve(fd: int, size_bytes: int, path: Path) -> None:
    """Make the file `size_bytes` long, its room claimed where the filesystem can: a full disk is found now."""
    os.ftruncate(fd, 0)
    # Not posix_fallocate: where there is no reservation it writes into every block instead.
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    if size_bytes and fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size_bytes)):
        code = ctypes.get_errno()
        if code not in _NO_RESERVATION:
            # What it could claim until then would keep the disk full.
            path.unlink(missing_ok=True)
            raise OSError(code, os.strerror(code), str(path))
    os.ftruncate(fd, size_bytes)
