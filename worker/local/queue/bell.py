"""A bell: many coroutines wait for it, one call wakes them all."""

from __future__ import annotations

import asyncio
import contextlib


class Bell:
    """Wakes every waiting coroutine of one event loop; a ring that nobody waits for is not kept."""

    def __init__(self) -> None:
        """Start with nobody waiting; needs no running loop."""
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake everybody. Call it on the loop's thread."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return at the next ring, or after `timeout_s` seconds."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(future, max(0.0, timeout_s))
        finally:
            self._waiting.discard(future)
