"""Telling a client that its job has ended, as its order asked."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import aiohttp

from worker.local.queue.limits import Limits


class Webhooks:
    """Posts status documents in the background; an address that does not answer 200 is tried again."""

    def __init__(self, limits: Limits) -> None:
        """Try as often and at the distance `limits` says."""
        self._limits = limits
        self._posting: set[asyncio.Task[None]] = set()

    def post(self, url: str, document: dict[str, Any]) -> None:
        """Begin to deliver `document`. Call it on the loop's thread."""
        task = asyncio.get_running_loop().create_task(self._deliver(url, document))
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    async def close(self) -> None:
        """Give up what has not been delivered."""
        for task in self._posting:
            task.cancel()
        await asyncio.gather(*self._posting, return_exceptions=True)

    async def _deliver(self, url: str, document: dict[str, Any]) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            for _ in range(self._limits.webhook_tries):
                if await _is_taken(session, url, document):
                    return
                await asyncio.sleep(self._limits.webhook_gap_s)


async def _is_taken(session: aiohttp.ClientSession, url: str, document: dict[str, Any]) -> bool:
    try:
        async with session.post(url, json=document) as response:
            return response.status == HTTPStatus.OK
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return False
