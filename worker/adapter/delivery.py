"""Results posted to the platform until it takes them, in place of the SDK's single try."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from worker import events
from worker.adapter.result import within_limit

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 8.0
# The SDK's session would wait ten minutes for a platform that takes the post and never answers.
ATTEMPT_LIMIT_S = 60.0
# Answers that another try cannot change: the platform understood and refuses. Not 401 and 403: the same key was good
# enough to take the job, so it is the platform that is in trouble.
_FINAL = frozenset({400, 404, 405, 410, 413, 415, 422})


# The platform's own path; at any other address a post counts as a result, which is never dropped unseen.
_CHUNKS = "/job-stream/"


class Delivery:
    """Stands in for `rp_http._transmit`: same arguments, but it tries until `limit_s` seconds have passed."""

    def __init__(self, writer: events.EventWriter, *, limit_s: float) -> None:
        """Retry for up to `limit_s` seconds per post."""
        self._events = writer
        self._limit_s = limit_s
        self._offered: dict[str, str] = {}
        self._lost: set[str] = set()

    async def transmit(self, session: aiohttp.ClientSession, url: str, job_data: str) -> None:
        """POST `job_data` to `url`; a result that cannot be delivered is written out once, whole, and dropped."""
        job_id = job_id_of(url)
        job_data = within_limit(job_data)
        if _CHUNKS in url:
            reason = await self._offer(session, url, job_data)
            if reason is not None:
                self._events.write(events.JobChunkUndelivered(job_id=job_id, reason=reason))
            return
        self._offered[job_id] = job_data
        try:
            reason = await self._offer(session, url, job_data)
            if reason is not None:
                self._lose(job_id, reason)
        finally:
            self._offered.pop(job_id, None)

    def give_up(self, job_id: str) -> None:
        """Write out the job's result if it is still being offered: the worker ends and cannot wait."""
        if job_id in self._offered:
            self._lose(job_id, "the worker ended before the platform took it")

    def has_lost(self, job_id: str) -> bool:
        """Say whether the job's result was written out instead of delivered."""
        return job_id in self._lost

    def forget(self, job_id: str) -> None:
        """Keep nothing of a job that is over."""
        self._lost.discard(job_id)

    def _lose(self, job_id: str, reason: str) -> None:
        self._lost.add(job_id)
        self._events.write(events.ResultUndelivered(job_id=job_id, reason=reason, body=self._offered[job_id]))

    async def _offer(self, session: aiohttp.ClientSession, url: str, job_data: str) -> str | None:
        """POST until it is taken; return why it was given up, or None."""
        deadline = time.monotonic() + self._limit_s
        pause_s = FIRST_PAUSE_S
        attempt = 0
        while True:
            attempt += 1
            attempt_limit_s = max(FIRST_PAUSE_S, min(ATTEMPT_LIMIT_S, deadline - time.monotonic()))
            reason, final = await _post(session, url, job_data, limit_s=attempt_limit_s)
            if reason is None or final or time.monotonic() + pause_s > deadline:
                return reason
            self._events.write(events.ResultRetried(job_id=job_id_of(url), attempt=attempt, reason=reason))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def job_id_of(url: str) -> str:
    """Return the job id at the end of a job-done or job-stream address."""
    return url.partition("?")[0].rstrip("/").rpartition("/")[2]


async def _post(session: aiohttp.ClientSession, url: str, job_data: str, *, limit_s: float) -> tuple[str | None, bool]:
    """Return why the post failed, or None, and whether trying again is pointless."""
    headers = {
        "charset": "utf-8",
        "Content-Type": "application/x-www-form-urlencoded",
        # The session's own is that of whichever job posted last.
        "X-Request-ID": job_id_of(url),
    }
    body = job_data.encode("utf-8", "replace")
    timeout = aiohttp.ClientTimeout(total=limit_s)
    try:
        async with session.post(url, data=body, headers=headers, timeout=timeout) as response:
            await response.read()
            status = response.status
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
        return f"{type(exc).__name__}: {exc}", False
    if status < 400:  # noqa: PLR2004 - where HTTP errors begin
        return None, False
    return f"HTTP {status}", status in _FINAL
