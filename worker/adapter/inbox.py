"""Frames on their way from the server to the platform: read ahead up to a limit, taken in batches."""

from __future__ import annotations

import asyncio
from collections import deque

LIMIT_CHARS = 1_000_000


class Inbox:
    """A bounded buffer with one writer and one reader; a full one makes the writer wait."""

    def __init__(self, limit_chars: int = LIMIT_CHARS) -> None:
        """Hold up to about `limit_chars` characters of frames."""
        self._frames: deque[str] = deque()
        self._limit_chars = limit_chars
        self._chars = 0
        self._closed = False
        self._changed = asyncio.Event()

    async def put(self, frame: str) -> None:
        """Add a frame, after waiting until the buffer is below its limit."""
        while self._chars >= self._limit_chars:
            await self._change()
        self._frames.append(frame)
        self._chars += len(frame)
        self._changed.set()

    async def take(self, *, one: bool = False) -> list[str]:
        """Return what is there, or only the first frame; wait if there is nothing. An empty list is the end."""
        while not self._frames and not self._closed:
            await self._change()
        taken = [self._frames.popleft() for _ in range(min(1, len(self._frames)) if one else len(self._frames))]
        self._chars -= sum(map(len, taken))
        self._changed.set()
        return taken

    def close(self, _: object = None) -> None:
        """Say that no frame follows; usable as a task's done callback."""
        self._closed = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
