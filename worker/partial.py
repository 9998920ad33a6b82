"""A file being written beside its final name: seen there whole or not at all, and cleared away when its writer dies."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from worker.bounded import Stalled

_SUFFIX = ".partial"
_PAUSE_S = 0.05
# What a filesystem says that cannot reserve room.
_NO_RESERVATION = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})


class Partial:
    """The right to write one file, held as a lock that the kernel drops when the process ends, however it ends.

    There is one name per target, so what a killed process left is found and used again or removed. Meant for folders
    on local disk or in memory.
    """

    def __init__(self, target: Path, fd: int) -> None:
        """Wrap the locked file open as `fd`; made by `begin`."""
        self.target = target
        self.fd = fd
        self._path = _beside(target)

    @classmethod
    def begin(cls, target: Path, *, stall_s: float, check: Callable[[], None] = lambda: None) -> Partial:
        """Return an empty file for `target`; wait while another writer makes the same one and moves on.

        `check` is called while waiting and may raise.

        Raises:
            Stalled: the other writer wrote nothing for `stall_s` seconds.
            OSError: the folder cannot be written.
        """
        path = _beside(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                _lock(fd, stall_s, check)
                # The file that was waited for may have got its final name, or may have been given up.
                if _same(fd, path):
                    os.ftruncate(fd, 0)
                    return cls(target, fd)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def reserve(self, size_bytes: int) -> None:
        """Make the file `size_bytes` long, with its room claimed where the filesystem can: full is found out now."""
        # Not posix_fallocate: where there is no reservation it writes into every block instead.
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
        if size_bytes and fallocate(self.fd, 0, ctypes.c_int64(0), ctypes.c_int64(size_bytes)):
            code = ctypes.get_errno()
            if code not in _NO_RESERVATION:
                raise OSError(code, os.strerror(code), str(self._path))
        os.ftruncate(self.fd, size_bytes)

    def publish(self, mtime_ns: int) -> None:
        """Give the file its final name and time of change, in place of what has that name."""
        os.utime(self.fd, ns=(mtime_ns, mtime_ns))
        self._path.replace(self.target)
        self._end()

    def discard(self) -> None:
        """Remove the file, unless it was published; threads that hang with it open keep no room on the disk."""
        if self.fd < 0:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, 0)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._end()

    def _end(self) -> None:
        # Explicitly: a duplicate in a hanging thread would hold the lock.
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)
        self.fd = -1


def reclaim(folder: Path) -> int:
    """Remove what killed writers left in `folder`, and nothing that is being written; return how many files."""
    removed = 0
    for path in folder.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(fd, path):
                    path.unlink()
                    removed += 1
            finally:
                os.close(fd)
    return removed


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}{_SUFFIX}")


def _lock(fd: int, stall_s: float, check: Callable[[], None]) -> None:
    changed_ns, since_s = 0, time.monotonic()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            check()
        else:
            return
        latest_ns = os.fstat(fd).st_mtime_ns
        if latest_ns != changed_ns:
            changed_ns, since_s = latest_ns, time.monotonic()
        elif time.monotonic() - since_s > stall_s:
            raise Stalled(f"another process is making this file and has written nothing for {stall_s:g} s")
        time.sleep(_PAUSE_S)


def _same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
