"""The parts of a file that nobody has taken on yet, handed out so that readers keep apart from each other."""

from __future__ import annotations

import threading

BLOCK_BYTES = 4 << 20
# What MooseFS and JuiceFS call a chunk: readers of one wait for each other, readers of several do not.
CHUNK_BYTES = 64 << 20


class Stretches:
    """A file cut into stretches; each reader has one of its own and takes it block by block, in ascending order.

    When no stretch is left, a reader takes over half of what another has before it: all end at about the same time.
    Safe to ask from several threads.
    """

    def __init__(self, size_bytes: int) -> None:
        """Begin with all of a file of `size_bytes` in one stretch."""
        self._lock = threading.Lock()
        self._free = [(0, size_bytes)] if size_bytes else []
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

    def share_out(self, readers: int, *, most_bytes: int | None = None) -> None:
        """Cut what nobody has taken on into one stretch for each of so many readers, or shorter ones of `most_bytes`.

        Long stretches are read fastest: what a filesystem reads ahead beyond the end of one is read in vain. With
        short ones the file grows from its start.
        """
        with self._lock:
            wanted_bytes = max(-(-self._left_bytes // max(readers, 1)), CHUNK_BYTES)
            each_bytes = -(-min(wanted_bytes, most_bytes or wanted_bytes) // BLOCK_BYTES) * BLOCK_BYTES
            self._free = [
                (at, min(at + each_bytes, end))
                for start, end in _joined([*self._free, *self._own.values()])
                for at in range(start, end, each_bytes)
            ]
            self._own.clear()

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


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return `spans` in order, neighbours that touch as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
