"""The same streams asked for in three ways: of the server itself, through the queue, and through the gateway."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from worker.local.queue import LocalQueue

LIMIT_S = 300.0
TEXT = "hi"


@dataclass(frozen=True)
class Taken:
    """For each stream of a set: seconds from the first request of all to its first token and to its last one."""

    first_s: list[float]
    last_s: list[float]

    def tokens_per_s(self, tokens: int) -> float:
        """Return the sum of the streams' speeds, each of them with `tokens` tokens."""
        return sum(tokens / (last_s - first_s) for first_s, last_s in zip(self.first_s, self.last_s, strict=True))


def body(tokens: int, *, openai: bool, text: str = TEXT) -> tuple[str, dict[str, Any]]:
    """Return path and body of a streamed chat; a real model answers it with the same tokens each time."""
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
    if openai:
        return "/v1/chat/completions", {**asked, "max_tokens": tokens, "temperature": 0}
    return "/api/chat", {**asked, "options": {"num_predict": tokens, "temperature": 0}}


def over_http(url: str, streams: int, tokens: int, *, openai: bool, text: str = TEXT) -> Taken:
    """Read `streams` streams at once from `url`, which is the server's or the gateway's."""
    return asyncio.run(_over_http(url, streams, body(tokens, openai=openai, text=text)))


async def _over_http(url: str, streams: int, asked: tuple[str, dict[str, Any]]) -> Taken:
    path, sent = asked
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        # The first connection of a client costs more than any later one.
        async with session.get(f"{url}/api/version") as warm:
            await warm.read()
        began_s = time.monotonic()

        async def one() -> tuple[float, float]:
            first_s = 0.0
            async with session.post(f"{url}{path}", json=sent) as answer:
                async for _ in answer.content.iter_any():
                    first_s = first_s or time.monotonic() - began_s
            return first_s, time.monotonic() - began_s

        times = await asyncio.gather(*(one() for _ in range(streams)))
        return Taken([first_s for first_s, _ in times], [last_s for _, last_s in times])


def over_queue(queue: LocalQueue, streams: int, tokens: int, *, openai: bool, text: str = TEXT) -> Taken:
    """Run `streams` jobs at once and take the times at which their chunks came in."""
    path, sent = body(tokens, openai=openai, text=text)
    job = {"openai_route": path, "openai_input": sent} if openai else {"route": path, "body": sent}
    began_s = time.monotonic()
    ids = [queue.submit(job) for _ in range(streams)]
    for job_id in ids:
        status = queue.wait(job_id, LIMIT_S)["status"]
        if status != "COMPLETED":
            raise RuntimeError(f"a job ended as {status}")
    chunks = [queue.record.chunks(job_id) for job_id in ids]
    return Taken([posts[0].at_s - began_s for posts in chunks], [posts[-1].at_s - began_s for posts in chunks])
