"""The parts of a file that nobody has taken on yet, handed out so that readers keep apart from each other."""

from __future__ import annotations

import threading

BLOCK_BYTES = 4 << 20
# What MooseFS and JuiceFS call a chunk: readers of one wait for each other, readers of several do not.
STRETCH_BYTES = 64 << 20


class Stretches:
    """A file cut into stretches; each reader has one of its own and takes it block by block, in ascending order.

    When no stretch is left, a reader takes over half of what another has before it: all end at about the same time.
    Safe to ask from several threads.
    """

    def __init__(self, size_bytes: int) -> None:
        """Cut a file of `size_bytes`."""
        self._lock = threading.Lock()
        self._free = [(start, min(start + STRETCH_BYTES, size_bytes)) for start in range(0, size_bytes, STRETCH_BYTES)]
        self._own: dict[int, tuple[int, int]] = {}
        self._left_bytes = size_bytes

    @property
    def left_bytes(self) -> int:
        """How many bytes nobody has taken on."""
        return self._left_bytes

    @property
    def first(self) -> int:
        """Where the first byte lies that nobody has taken on; 0 when there is none."""
        with self._lock:
            return min((start for start, _ in (*self._free, *self._own.values())), default=0)

    def take(self, reader: int, most_bytes: int) -> tuple[int, int] | None:
        """Return start and end of the next block of `reader`, of `most_bytes` at most; None when nothing is left."""
        with self._lock:
            start, end = self._own.pop(reader) if reader in self._own else self._another() or (0, 0)
            if start == end:
                return None
            block_end = min(start + min(BLOCK_BYTES, most_bytes), end)
            if block_end < end:
                self._own[reader] = (block_end, end)
            self._left_bytes -= block_end - start
            return start, block_end

    def leave(self) -> None:
        """Take back what readers have before them: others go on from there."""
        with self._lock:
            self._free = sorted([*self._free, *self._own.values()])
            self._own.clear()

    def _another(self) -> tuple[int, int] | None:
        if self._free:
            return self._free.pop(0)
        if not self._own:
            return None
        other = max(self._own, key=lambda reader: self._own[reader][1] - self._own[reader][0])
        start, end = self._own.pop(other)
        # Whole blocks, so that direct reads stay aligned; of a single one the other had not begun.
        middle = start + (end - start) // BLOCK_BYTES // 2 * BLOCK_BYTES
        if middle > start:
            self._own[other] = (start, middle)
        return middle, end
