from __future__ import annotations

import time
from typing import TYPE_CHECKING

import aiohttp
import pytest
import requests
from aiohttp import web

from worker.local.queue import (
    EMPTY,
    GARBAGE,
    HTML,
    NORMAL,
    NOTHING,
    NULL,
    RESET,
    WITHOUT_ID,
    WITHOUT_INPUT,
    Answer,
    Call,
    Faults,
    LocalQueue,
    Record,
    Script,
    State,
)
from worker.local.queue.exchange import Exchange, Reply

if TYPE_CHECKING:
    from tests.fakes.queue_peers import HttpWorker, NewWorker


@pytest.mark.parametrize(
    ("answer", "status", "content_type", "text"),
    [
        (NOTHING, 204, None, ""),
        (NULL, 200, "application/json", "null"),
        (EMPTY, 200, "application/json", ""),
        (GARBAGE, 200, "application/json", "<html>not json</html>"),
        (HTML, 200, "text/html", "<html>a proxy's page</html>"),
        (WITHOUT_INPUT, 200, "application/json", '{"id": "without-input"}'),
        (WITHOUT_ID, 200, "application/json", '{"input": {}}'),
        (Answer(400, '{"error": "x"}'), 400, "application/json", '{"error": "x"}'),
        (Answer(429), 429, "application/json", ""),
        (Answer(500), 500, "application/json", ""),
    ],
)
def test_a_take_gets_the_scripted_answer_and_the_job_stays(
    queue: LocalQueue, worker: HttpWorker, *, answer: Answer, status: int, content_type: str | None, text: str
) -> None:
    queue.faults.take.add(answer)
    job_id = queue.submit("in")
    got = worker.take()
    assert (got.status_code, got.text) == (status, text)
    if content_type is not None:
        assert got.headers["Content-Type"].split(";")[0] == content_type
    assert queue.status(job_id)["status"] == "IN_QUEUE"
    assert worker.take_id() == job_id
    assert [call.answered for call in queue.record.takes()] == [status, 200]


def test_a_result_can_be_refused_any_number_of_times(new_worker: NewWorker) -> None:
    with LocalQueue(faults=Faults(done=[Answer(500), NORMAL, Answer(429)])) as queue:
        worker = new_worker(queue)
        ids = [queue.submit("in") for _ in range(2)]
        worker.take_batch(2)
        assert worker.done(ids[0], {"output": 1}).status_code == 500
        assert queue.status(ids[0])["status"] == "IN_PROGRESS"
        assert worker.done(ids[0], {"output": 1}).status_code == 200
        assert worker.done(ids[1], {"output": 1}).status_code == 429
        assert worker.done(ids[1], {"output": 1}).status_code == 200


@pytest.mark.parametrize("call", ["take", "stop", "done", "stream", "ping"])
def test_every_call_can_be_reset(queue: LocalQueue, worker: HttpWorker, call: str) -> None:
    job_id = queue.submit("in")
    worker.take()
    getattr(queue.faults, call).add(RESET)
    calls = {
        "take": worker.take,
        "stop": worker.poll_stop,
        "done": lambda: worker.done(job_id, {}),
        "stream": lambda: worker.chunk(job_id, "x"),
        "ping": worker.ping,
    }
    with pytest.raises(requests.ConnectionError, match=r"reset by peer|closed connection"):
        calls[call]()
    assert queue.record.calls(call)[-1].answered is None
    assert queue.status(job_id)["status"] == "IN_PROGRESS"
    assert calls[call]().ok


def test_a_result_can_be_kept_although_its_sender_is_told_it_failed(queue: LocalQueue, worker: HttpWorker) -> None:
    queue.faults.done.add(Answer(500, applied=True))
    queue.faults.done.add(Answer(reset=True, applied=True))
    failed, reset = queue.submit("in"), queue.submit("in")
    worker.take_batch(2)
    assert worker.done(failed, {"output": "kept"}).status_code == 500
    assert queue.status(failed)["output"] == "kept"
    with pytest.raises(requests.ConnectionError):
        worker.done(reset, {"output": "kept too"})
    assert queue.status(reset)["output"] == "kept too"


def test_a_job_can_be_handed_out_into_a_reset_connection(queue: LocalQueue, worker: HttpWorker) -> None:
    queue.faults.take.add(Answer(reset=True, applied=True))
    job_id = queue.submit("in")
    with pytest.raises(requests.ConnectionError):
        worker.take()
    assert queue.status(job_id)["status"] == "IN_PROGRESS"
    assert queue.record.takes(job_id)[0].answered is None


def test_a_slow_stream_takes_the_chunk_late_and_answers_normally(queue: LocalQueue, worker: HttpWorker) -> None:
    queue.faults.stream.always(Answer(delay_s=0.3))
    job_id = queue.submit("in")
    worker.take()
    begin_s = time.monotonic()
    assert worker.chunk(job_id, "slow").status_code == 200
    assert time.monotonic() - begin_s >= 0.3
    assert queue.record.chunks(job_id)[0].at_s - begin_s < time.monotonic() - begin_s
    assert next(queue.stream(job_id)) == "slow"


def test_a_late_error_is_still_an_error(queue: LocalQueue, worker: HttpWorker) -> None:
    queue.faults.ping.add(Answer(503, delay_s=0.1))
    got = worker.ping()
    assert got.status_code == 503
    assert got.elapsed.total_seconds() >= 0.1
    assert queue.health()["workers"]["idle"] == 0, "a ping that failed is no sign of life"


def test_a_stop_poll_can_be_answered_with_anything(queue: LocalQueue, worker: HttpWorker) -> None:
    queue.faults.stop.add(Answer(200, '{"jobsToStop": ["a", 5, null]}'))
    assert worker.poll_stop().json() == {"jobsToStop": ["a", 5, None]}


def test_a_second_delivery_gives_the_running_job_to_another_worker(
    queue: LocalQueue, worker: HttpWorker, new_worker: NewWorker
) -> None:
    job_id = queue.submit("in")
    assert worker.take_id() == job_id
    queue.deliver_again(job_id)
    other = new_worker(queue, "w2")
    assert other.take_id() == job_id
    assert other.done(job_id, {"output": "second"}).status_code == 200
    assert worker.done(job_id, {"output": "first"}).status_code == 200
    assert queue.status(job_id)["output"] == "second"
    assert [move.state for move in queue.record.history(job_id)].count(State.IN_PROGRESS) == 1


async def test_an_answer_that_cannot_be_delivered_is_taken_back(
    record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    undone: list[Call] = []

    async def hang_up(request: web.Request, call: Call) -> Reply:
        assert request.transport is not None
        request.transport.abort()
        return Reply(document={"never": "read"}, undo=lambda: undone.append(call))

    app = web.Application()
    app.add_routes([web.post("/{worker}", Exchange(record).handler("take", Script(), hang_up))])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/w1"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.post(url)
    await runner.cleanup()
    assert undone == record.takes()
    assert [call.answered for call in undone] == [None]
    assert [line for line in caplog.records if line.levelname == "ERROR"] == []
