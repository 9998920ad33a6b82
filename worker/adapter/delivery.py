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
# Answers that another try cannot change: the platform understood and refuses.
_FINAL = frozenset({400, 401, 403, 404, 405, 410, 413, 415, 422})


class Delivery:
    """Stands in for `rp_http._transmit`: same arguments, but it tries until `limit_s` seconds have passed."""

    def __init__(self, writer: events.EventWriter, *, limit_s: float) -> None:
        """Retry for up to `limit_s` seconds per post."""
        self._events = writer
        self._limit_s = limit_s

    async def transmit(self, session: aiohttp.ClientSession, url: str, job_data: str) -> None:
        """POST `job_data` to `url`; a body that cannot be delivered is written out once, whole, and dropped."""
        job_id = job_id_of(url)
        job_data = within_limit(job_data)
        deadline = time.monotonic() + self._limit_s
        pause_s = FIRST_PAUSE_S
        attempt = 0
        while True:
            attempt += 1
            attempt_limit_s = max(FIRST_PAUSE_S, min(ATTEMPT_LIMIT_S, deadline - time.monotonic()))
            reason, final = await _post(session, url, job_data, limit_s=attempt_limit_s)
            if reason is None:
                return
            if final or time.monotonic() + pause_s > deadline:
                self._events.write(events.ResultUndelivered(job_id=job_id, reason=reason, body=job_data))
                return
            self._events.write(events.ResultRetried(job_id=job_id, attempt=attempt, reason=reason))
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
