from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from worker.local.queue import JobUnknown
from worker.local.queue.watch import next_chunks, until_final

if TYPE_CHECKING:
    from tests.fakes.queue_peers import Submit
    from worker.local.queue.store import JobStore


async def test_waiting_for_the_end_returns_at_the_end(store: JobStore, submit: Submit) -> None:
    job = submit()
    waiting = asyncio.ensure_future(until_final(store, job, 60))
    await asyncio.sleep(0)
    store.take("w1", 1)
    store.append(job.job_id, ["chunk"])
    await asyncio.sleep(0)
    assert not waiting.done()
    store.finish(job.job_id, {})
    assert await asyncio.wait_for(waiting, 30) is True
    assert await until_final(store, job, 0) is True


async def test_waiting_for_the_end_gives_up_in_time(store: JobStore, submit: Submit) -> None:
    assert await until_final(store, submit(), 0.05) is False


async def test_waiting_for_a_job_that_vanishes_is_an_error(store: JobStore, submit: Submit) -> None:
    job = submit()
    waits = [asyncio.ensure_future(until_final(store, job, 60)), asyncio.ensure_future(next_chunks(store, job, 0, 60))]
    await asyncio.sleep(0)
    store.purge()
    for waiting in waits:
        with pytest.raises(JobUnknown):
            await asyncio.wait_for(waiting, 30)


async def test_chunks_come_as_soon_as_there_is_one(store: JobStore, submit: Submit) -> None:
    job = submit()
    store.take("w1", 1)
    waiting = asyncio.ensure_future(next_chunks(store, job, 0, 60))
    await asyncio.sleep(0)
    store.append(job.job_id, ["a"])
    assert await asyncio.wait_for(waiting, 30) == ["a"]
    store.append(job.job_id, ["b", "c"])
    assert await next_chunks(store, job, 1, 60) == ["b", "c"]


async def test_no_chunks_mean_the_end(store: JobStore, submit: Submit) -> None:
    job = submit()
    store.take("w1", 1)
    store.append(job.job_id, ["a"])
    waiting = asyncio.ensure_future(next_chunks(store, job, 1, 60))
    await asyncio.sleep(0)
    store.finish(job.job_id, {"error": "x"})
    assert await asyncio.wait_for(waiting, 30) == []
    assert await next_chunks(store, job, 0, 60) == ["a"], "what came before the end is still there"


async def test_a_job_that_produces_nothing_is_a_timeout(store: JobStore, submit: Submit) -> None:
    with pytest.raises(TimeoutError, match="produced nothing"):
        await next_chunks(store, submit(), 0, 0.05)
