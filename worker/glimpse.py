"""How fast a file is read where it lies, told from a little of it: enough to see that copying it would be no slower."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from pathlib import Path

from worker import bounded
from worker.storage import PageCache

# More would make some network filesystems slower for seconds.
GLIMPSE_BYTES = 1 << 20
LIMIT_S = 30.0


def rate(source: Path, offset: int) -> float:
    """Read a little from `offset` on through the page cache, as the server would; return bytes per second.

    Raises:
        OSError: reading failed; Stalled when it takes too long.
    """
    return bounded.call(lambda: _read(source, offset), LIMIT_S, str(source))


class FirstGlimpse:
    """A glimpse of a file's start on a thread of its own, while what else has to be known of the file is found out."""

    def __init__(self, source: Path) -> None:
        """Begin to read; a read that hangs in the kernel holds up nobody."""
        self._rate: float | None = None
        # Without room for a thread nothing is known of it, which is no reason to give up.
        with contextlib.suppress(OSError):
            bounded.start(threading.Thread(target=self._look, args=(source,), name="glimpse", daemon=True))

    @property
    def rate(self) -> float | None:
        """Bytes per second; None while that is not known, or when it says nothing because the start was cached."""
        return self._rate

    def _look(self, source: Path) -> None:
        # A file that cannot be read is the copy's to report.
        with contextlib.suppress(OSError, ValueError):
            if not _cached(source):
                self._rate = _read(source, 0)


def _cached(source: Path) -> bool:
    with source.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        with contextlib.closing(PageCache(file.fileno(), size_bytes)) as cache:
            return cache.share(0, min(GLIMPSE_BYTES, size_bytes)) > 0


def _read(source: Path, offset: int) -> float:
    with source.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        began_s = time.monotonic()
        count = len(os.pread(file.fileno(), GLIMPSE_BYTES, offset))
        if not count:
            raise OSError(errno.EIO, f"it ends before byte {offset:,}", str(source))
        return count / max(time.monotonic() - began_s, 1e-9)
