"""A file opened for one reader: past the page cache or through it, and a look at what is in there already."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from worker.storage import PageCache

if TYPE_CHECKING:
    from typing_extensions import Self

# In the part of the file, for filesystems that keep it in parts, whose place the first read asks for; far enough from
# each other that nothing has been read ahead there.
_PART_BYTES = 64 << 20
_LOOKS = range(0, _PART_BYTES, 8 << 20)
# Storage that has taken this long for two reads or more is far, and is not asked again.
_LOOK_S = 0.01


class Opened:
    """One file, open until the context ends.

    `fd` is past the page cache when it was asked for `direct`. `plain_fd` is through it, and opened when it is needed:
    an opening is a round trip to distant storage, and few files are read both ways.
    """

    def __init__(self, path: Path, *, direct: bool) -> None:
        """Open `path`; raise OSError when that fails."""
        self._path = path
        self._plain_fd: int | None = None
        self._stack = contextlib.ExitStack()
        self.fd = self._open(os.O_DIRECT) if direct else self.plain_fd

    def __enter__(self) -> Self:
        """Return itself, open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything."""
        self._stack.close()

    @property
    def plain_fd(self) -> int:
        """The file through the page cache; raises OSError when opening it fails."""
        if self._plain_fd is None:
            self._plain_fd = self._open(0)
        return self._plain_fd

    def page_cache(self, size_bytes: int) -> PageCache | None:
        """Return a look at what of its `size_bytes` is cached, or None where files cannot be mapped."""
        try:
            return self._stack.enter_context(contextlib.closing(PageCache(self.fd, size_bytes)))
        except (OSError, ValueError):
            return None

    def _open(self, flags: int) -> int:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | flags)
        self._stack.callback(os.close, fd)
        return fd


def direct_latency_s(path: Path) -> float | None:
    """Return how long a little of `path` takes past the page cache, in seconds, or None when it cannot be read so.

    The first read may have to find out where the file's parts are, and any may wait for a core: the shortest of a few
    counts. A file shorter than such a part is read only once: it is copied before that pays.

    Raises:
        OSError: it cannot be read at all.
    """
    took_s: list[float] = []
    try:
        with Opened(path, direct=True) as file, mmap.mmap(-1, mmap.PAGESIZE) as block:
            for offset in _LOOKS if os.fstat(file.fd).st_size >= _PART_BYTES else _LOOKS[:1]:
                began_s = time.monotonic()
                os.preadv(file.fd, [block], offset)
                took_s.append(time.monotonic() - began_s)
                if len(took_s) > 1 and sum(took_s) >= _LOOK_S:
                    break
    except OSError as exc:
        # Some filesystems refuse at open, some at the first read.
        if exc.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
        return None
    return min(took_s)
