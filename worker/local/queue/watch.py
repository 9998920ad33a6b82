"""Waiting for a job: for its end, or for its next chunks."""

from __future__ import annotations

import time
from typing import Any

from worker.local.queue.job import Job
from worker.local.queue.store import JobStore


async def until_final(store: JobStore, job: Job, timeout_s: float) -> bool:
    """Return whether the job ended within `timeout_s` seconds; raises JobUnknown when it vanished."""
    deadline_s = time.monotonic() + timeout_s
    while not job.state.is_final:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        await store.bell.wait(left_s)
        store.get(job.job_id)
    return True


async def next_chunks(store: JobStore, job: Job, seen: int, timeout_s: float) -> list[Any]:
    """Return the chunks after the first `seen`, waiting for at least one; an empty list means the job ended.

    Raises JobUnknown when the job vanished and TimeoutError after `timeout_s` seconds without a chunk.
    """
    deadline_s = time.monotonic() + timeout_s
    while len(job.chunks) <= seen and not job.state.is_final:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"job {job.job_id} produced nothing for {timeout_s:g} s")
        await store.bell.wait(left_s)
        store.get(job.job_id)
    return job.chunks[seen:]
