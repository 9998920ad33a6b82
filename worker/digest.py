"""The sha256 of a file while it is written out of order, so that verifying costs no second pass at the end."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable

from worker import bounded

READ_BYTES = 4 << 20
_PAUSE_S = 0.05


class TrailingDigest:
    """Hashes the part of a file that is complete from its start, in a thread of its own.

    Writers say what they have written with `wrote`; `result` waits for the rest.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        """Follow the file open as `fd`, which is duplicated and stays the caller's; raise OSError if no thread can."""
        self._fd = os.dup(fd)
        self._size_bytes = size_bytes
        self._ends: dict[int, int] = {}
        self._complete_bytes = 0
        self._grown = threading.Condition()
        self._abandoned = False
        self._failure: OSError | None = None
        self._hashed_bytes = 0
        self._digest = hashlib.sha256()
        self._thread = threading.Thread(target=self._follow, name="digest", daemon=True)
        try:
            bounded.start(self._thread)
        except OSError:
            os.close(self._fd)
            raise

    def wrote(self, start: int, end: int) -> None:
        """Say that bytes [start, end) are in the file; ranges may come in any order and must not overlap."""
        with self._grown:
            self._ends[start] = end
            if start != self._complete_bytes:
                # The thread would wake for nothing, and take a core from who writes.
                return
            while self._complete_bytes in self._ends:
                self._complete_bytes = self._ends.pop(self._complete_bytes)
            self._grown.notify()

    @property
    def complete(self) -> bool:
        """Whether every byte was written."""
        return self._complete_bytes >= self._size_bytes

    def abandon(self) -> None:
        """Stop hashing; the thread ends within the hashing of one block."""
        with self._grown:
            self._abandoned = True
            self._grown.notify()

    def result(self, check: Callable[[], None] = lambda: None) -> str:
        """Return the hex digest of the whole file once every byte was written; raise OSError if reading it failed.

        `check` is called while waiting and may raise.
        """
        while self._thread.is_alive():
            self._thread.join(_PAUSE_S)
            check()
        if self._failure is not None:
            raise self._failure
        if self._hashed_bytes != self._size_bytes:
            # The digest of a part would condemn a file that is right.
            raise OSError(errno.EIO, f"only {self._hashed_bytes:,} of {self._size_bytes:,} bytes were hashed")
        return self._digest.hexdigest()

    def _follow(self) -> None:
        try:
            buffer = memoryview(bytearray(min(READ_BYTES, self._size_bytes)))
            while self._hashed_bytes < self._size_bytes:
                ready = self._complete_after(self._hashed_bytes)
                if ready is None:
                    return
                block = self._block(buffer, self._hashed_bytes, ready)
                self._digest.update(block)
                self._hashed_bytes += len(block)
        except MemoryError:
            self._failure = OSError(errno.ENOMEM, "no memory is left to check the digest")
        except OSError as exc:
            self._failure = exc
        finally:
            os.close(self._fd)

    def _block(self, buffer: memoryview, start: int, end: int) -> memoryview:
        count = os.preadv(self._fd, [buffer[: end - start]], start)
        if not count:
            raise OSError(errno.EIO, f"the file ends at byte {start:,}, although {end:,} were written")
        return buffer[:count]

    def _complete_after(self, done: int) -> int | None:
        """Wait until more than `done` bytes are complete and return how many, or None when abandoned."""
        with self._grown:
            self._grown.wait_for(lambda: self._abandoned or self._complete_bytes > done)
            return None if self._abandoned else self._complete_bytes
