from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aiohttp
import pytest

from worker.adapter.delivery import Delivery, job_id_of
from worker.local.queue import RESET, Answer, LocalQueue

if TYPE_CHECKING:
    from tests.conftest import Written

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.adapter.delivery.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("worker.adapter.delivery.LONGEST_PAUSE_S", 0.04)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def job_id(queue: LocalQueue) -> str:
    return queue.submit({"prompt": "hi"})


def done_url(queue: LocalQueue, job_id: str) -> str:
    return f"{queue.api_url}/{queue.endpoint_id}/job-done/w1/{job_id}?gpu=LOCAL&isStream=false"


async def test_a_result_is_posted_once_as_the_sdk_would(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    body = json.dumps({"output": "Grüße 🦙"}, ensure_ascii=False)
    await Delivery(written.writer, limit_s=LIMIT_S).transmit(session, done_url(queue, job_id), body)
    (call,) = queue.record.dones(job_id)
    assert call.body == {"output": "Grüße 🦙"}
    assert call.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert call.query["isStream"] == "false"
    assert queue.status(job_id)["output"] == "Grüße 🦙"
    assert written.records == []


async def test_a_result_is_sent_again_until_it_is_taken(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    for answer in (Answer(429), Answer(500), RESET, Answer(401)):
        queue.faults.done.add(answer)
    await Delivery(written.writer, limit_s=LIMIT_S).transmit(session, done_url(queue, job_id), '{"output":1}')
    assert [call.answered for call in queue.record.dones(job_id)] == [429, 500, None, 401, 200]
    retried = written.all("result.retried")
    assert [(r["job_id"], r["attempt"]) for r in retried] == [(job_id, n) for n in (1, 2, 3, 4)]
    assert [r["reason"].partition(":")[0] for r in retried] == [
        "HTTP 429",
        "HTTP 500",
        "ClientOSError",
        "HTTP 401",
    ]
    assert queue.status(job_id)["output"] == 1


async def test_every_try_carries_the_id_of_its_own_job(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    # The SDK keeps one session for all jobs and writes each job's id into its headers before that job's first try.
    session.headers["X-Request-ID"] = "another job"
    queue.faults.done.add(Answer(500))
    await Delivery(written.writer, limit_s=LIMIT_S).transmit(session, done_url(queue, job_id), '{"output":1}')
    assert [call.headers["X-Request-ID"] for call in queue.record.dones(job_id)] == [job_id] * 2


async def test_pauses_grow_up_to_a_limit(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    queue.faults.done.add(Answer(500), 5)
    await Delivery(written.writer, limit_s=LIMIT_S).transmit(session, done_url(queue, job_id), '{"output":1}')
    times = [call.at_s for call in queue.record.dones(job_id)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(gap >= least for gap, least in zip(gaps, [0.01, 0.02, 0.04, 0.04, 0.04], strict=True)), gaps


@pytest.mark.parametrize("status", [400, 404, 405, 410, 413, 415, 422])
async def test_a_refusal_is_final(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str, status: int
) -> None:
    queue.faults.done.add(Answer(status))
    body = '{"output":"what the client should have had"}'
    await Delivery(written.writer, limit_s=LIMIT_S).transmit(session, done_url(queue, job_id), body)
    assert len(queue.record.dones(job_id)) == 1
    lost = written.one("result.undelivered")
    assert (lost["job_id"], lost["reason"], lost["body"]) == (job_id, f"HTTP {status}", body)


async def test_a_platform_that_never_takes_it_is_given_up(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    queue.faults.done.always(Answer(500))
    await Delivery(written.writer, limit_s=0.3).transmit(session, done_url(queue, job_id), '{"output":1}')
    tries = queue.record.dones(job_id)
    assert len(tries) > 2
    assert len(written.all("result.retried")) == len(tries) - 1
    assert written.one("result.undelivered")["body"] == '{"output":1}'
    assert written.records[-1]["event"] == "result.undelivered"


async def test_a_chunk_that_is_given_up_is_no_lost_result(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    queue.faults.stream.add(Answer(400))
    delivery = Delivery(written.writer, limit_s=LIMIT_S)
    await delivery.transmit(session, done_url(queue, job_id).replace("job-done", "job-stream"), '{"output":1}')
    assert not delivery.has_lost(job_id)
    lost = written.one("job.chunk_undelivered")
    assert (lost["job_id"], lost["reason"]) == (job_id, "HTTP 400")
    assert len(written.records) == 1


async def test_a_result_still_on_offer_when_the_worker_ends_is_written_out_once(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    queue.faults.done.always(Answer(503))
    delivery = Delivery(written.writer, limit_s=LIMIT_S)
    offering = asyncio.create_task(delivery.transmit(session, done_url(queue, job_id), '{"output":"whole"}'))
    while not written.all("result.retried"):  # noqa: ASYNC110 - another component's progress has no event to wait for
        await asyncio.sleep(0.01)
    assert not delivery.has_lost(job_id)
    delivery.give_up(job_id)
    offering.cancel()
    await asyncio.wait([offering])
    delivery.give_up(job_id)
    lost = written.one("result.undelivered")
    assert (lost["job_id"], lost["body"]) == (job_id, '{"output":"whole"}')
    assert delivery.has_lost(job_id)
    delivery.forget(job_id)
    assert not delivery.has_lost(job_id)


async def test_a_result_that_is_stopped_or_taken_is_not_written_out(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    delivery = Delivery(written.writer, limit_s=LIMIT_S)
    queue.faults.done.add(Answer(delay_s=300))
    stopped = asyncio.create_task(delivery.transmit(session, done_url(queue, job_id), '{"output":1}'))
    while not queue.record.dones(job_id):  # noqa: ASYNC110 - same
        await asyncio.sleep(0.01)
    stopped.cancel()
    await asyncio.wait([stopped])
    await delivery.transmit(session, done_url(queue, job_id), '{"output":1}')
    delivery.give_up(job_id)
    assert not delivery.has_lost(job_id)
    assert written.records == []


async def test_a_platform_that_does_not_answer_is_given_up_too(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    queue.faults.done.always(Answer(delay_s=300))
    delivery = Delivery(written.writer, limit_s=0.3)
    await asyncio.wait_for(delivery.transmit(session, done_url(queue, job_id), '{"output":1}'), LIMIT_S)
    assert "Timeout" in written.one("result.undelivered")["reason"]


async def test_a_hanging_try_does_not_use_up_the_whole_limit(
    queue: LocalQueue,
    written: Written,
    session: aiohttp.ClientSession,
    job_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.adapter.delivery.ATTEMPT_LIMIT_S", 0.2)
    queue.faults.done.add(Answer(delay_s=300))
    await Delivery(written.writer, limit_s=LIMIT_S).transmit(session, done_url(queue, job_id), '{"output":1}')
    assert queue.status(job_id)["output"] == 1
    assert written.all("result.undelivered") == []


async def test_a_platform_that_comes_back_gets_the_result(written: Written, session: aiohttp.ClientSession) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v2/local/job-done/w1/J1?gpu=LOCAL&isStream=true"
    sending = asyncio.create_task(Delivery(written.writer, limit_s=LIMIT_S).transmit(session, url, '{"output":1}'))
    while not written.all("result.retried"):  # noqa: ASYNC110 - another component's progress has no event to wait for
        await asyncio.sleep(0.01)
    assert "ClientConnector" in written.all("result.retried")[0]["reason"]
    with LocalQueue(port=port) as queue:
        await asyncio.wait_for(sending, LIMIT_S)
        # The queue does not know the job; what counts is that it was asked.
        assert queue.record.dones("J1")


async def test_half_a_character_does_not_keep_a_result_from_its_client(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    body = json.dumps({"output": "half \ud83e"}, ensure_ascii=False)
    await Delivery(written.writer, limit_s=LIMIT_S).transmit(session, done_url(queue, job_id), body)
    assert queue.status(job_id)["output"] == "half ?"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.runpod.ai/v2/ep/job-done/w/abc-u1?gpu=A+B&isStream=true", "abc-u1"),
        ("http://h/v2/ep/job-stream/w/sync-abc-e1?gpu=X", "sync-abc-e1"),
        ("http://h/v2/ep/job-done/w/abc/", "abc"),
        ("", ""),
    ],
)
def test_the_job_is_the_end_of_the_address(url: str, expected: str) -> None:
    assert job_id_of(url) == expected


async def test_a_result_larger_than_the_platform_takes_is_replaced(
    queue: LocalQueue, written: Written, session: aiohttp.ClientSession, job_id: str
) -> None:
    body = json.dumps({"output": ["x" * 900_000] * 25})
    await Delivery(written.writer, limit_s=LIMIT_S).transmit(session, done_url(queue, job_id), body)
    (marker,) = queue.status(job_id)["output"]
    assert "its 25 chunks were all sent to /stream" in marker["omitted"]
    assert written.all("result.undelivered") == []
