"""The SDK's production loop against the queue: the calls it makes when nothing goes wrong, and how jobs are stopped."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.fakes.sdk_process import SdkWorker
from worker.local.queue import Answer, Limits, LocalQueue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMITS = Limits(take_hold_s=1, stop_hold_s=1, ping_interval_s=1, missed_pings=30)


@pytest.fixture(scope="module")
def streaming() -> Iterator[LocalQueue]:
    """A queue with one worker whose handler is an async generator, three jobs at a time."""
    with LocalQueue(limits=LIMITS) as queue, SdkWorker(queue, "stream", concurrency=3):
        yield queue


@pytest.fixture(scope="module")
def answering() -> Iterator[LocalQueue]:
    """A queue with one worker whose handler is an async function, four jobs at a time."""
    with LocalQueue(limits=LIMITS) as queue, SdkWorker(queue, "answer", concurrency=4):
        yield queue


def test_a_worker_pings_takes_and_polls_for_stops_as_soon_as_it_is_there(streaming: LocalQueue) -> None:
    ping, take, stop = (
        calls[0] for calls in (streaming.record.pings(), streaming.record.takes(), streaming.record.stops())
    )
    assert ping.query == {"gpu": "LOCAL", "runpod_version": "1.12.0"}
    assert take.query == {"gpu": "LOCAL", "batch_size": "3", "job_in_progress": "0"}
    assert stop.query == {"gpu": "LOCAL"}
    assert {call.headers["Authorization"] for call in (ping, take, stop)} == {"local"}
    assert {call.worker_id for call in (ping, take, stop)} == {"w1"}


def test_a_generator_posts_each_chunk_and_then_an_empty_result(streaming: LocalQueue) -> None:
    job_id = streaming.submit({"yields": ["a", {"b": 1}, "c"]})
    assert list(streaming.stream(job_id)) == ["a", {"b": 1}, "c"]
    assert streaming.wait(job_id)["output"] == []
    chunks, dones = streaming.record.chunks(job_id), streaming.record.dones(job_id)
    assert [call.query["isStream"] for call in chunks] == ["false"] * 3
    assert [(call.query["isStream"], call.body) for call in dones] == [("true", {"output": []})]
    assert dones[0].headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert dones[0].headers["X-Request-ID"] == job_id


def test_chunks_arrive_while_the_job_runs(streaming: LocalQueue) -> None:
    job_id = streaming.submit({"yields": ["a", "b"], "gap_s": 0.3})
    stream = streaming.stream(job_id)
    next(stream)
    assert streaming.status(job_id)["status"] == "IN_PROGRESS"
    assert list(stream) == ["b"]
    first, second = streaming.record.chunks(job_id)
    assert second.at_s - first.at_s >= 0.25


def test_a_yielded_error_ends_the_job_as_a_python_repr(streaming: LocalQueue) -> None:
    job_id = streaming.submit({"yields": [{"a": 1}, {"error": {"code": 400, "message": "m"}}, "never"]})
    status = streaming.wait(job_id)
    assert (status["status"], status["error"]) == ("FAILED", "{'code': 400, 'message': 'm'}")
    assert list(streaming.stream(job_id)) == [{"a": 1}]


def test_pings_carry_the_job_at_hand(streaming: LocalQueue) -> None:
    job_id = streaming.submit({"yields": ["a"], "gap_s": 60})
    next(streaming.stream(job_id))
    streaming.record.wait_for(lambda record: record.pings(job_id))
    streaming.cancel(job_id)
    seen = len(streaming.record.pings())
    streaming.record.wait_for(lambda record: any(not ping.job_ids for ping in record.pings()[seen:]))


def test_a_cancelled_job_is_cancelled_in_its_handler_and_posts_nothing(streaming: LocalQueue, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job_id = streaming.submit({"yields": ["a"] * 1000, "gap_s": 0.05, "note": str(note)})
    next(streaming.stream(job_id))
    streaming.send_stop("w1", "nobody", "nobody")
    streaming.cancel(job_id)
    streaming.record.wait_for(lambda record: record.stops(job_id))
    after = streaming.submit({"yields": ["next"]})
    assert list(streaming.stream(after)) == ["next"], "the worker lives on and its slot is free"
    assert note.read_text() == "cancelled"
    assert streaming.status(job_id)["status"] == "CANCELLED"
    assert streaming.record.dones(job_id) == []


def test_a_job_over_its_execution_time_is_cancelled_in_its_handler(streaming: LocalQueue, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job_id = streaming.submit({"yields": ["a"], "gap_s": 60, "note": str(note)}, execution_timeout_s=1)
    assert list(streaming.stream(job_id)) == ["a"]
    assert streaming.wait(job_id)["status"] == "TIMED_OUT"
    streaming.record.wait_for(lambda _: note.exists())


def test_a_function_posts_one_result(answering: LocalQueue) -> None:
    job_id = answering.submit({"result": {"n": 1}})
    status = answering.wait(job_id)
    assert (status["status"], status["output"]) == ("COMPLETED", {"n": 1})
    assert [(call.query["isStream"], call.body) for call in answering.record.dones(job_id)] == [
        ("false", {"output": {"n": 1}})
    ]


@pytest.mark.parametrize(
    ("result", "body"),
    [
        (None, {"output": None}),
        ({}, {}),
        ([1], {"output": [1]}),
        ({"error": "e"}, {"error": "e"}),
        ({"error": {"c": 1}, "rest": 2}, {"output": {"rest": 2}, "error": {"c": 1}}),
        ({"refresh_worker": True, "rest": 2}, {"output": {"rest": 2}, "stopPod": True}),
    ],
)
def test_the_shape_of_a_result_decides_the_body(answering: LocalQueue, result: object, body: object) -> None:
    job_id = answering.submit({"result": result})
    answering.wait(job_id)
    assert answering.record.dones(job_id)[0].body == body


def test_a_raised_error_reaches_the_client_as_json_text(answering: LocalQueue) -> None:
    status = answering.wait(answering.submit({"raises": "broken"}))
    assert status["status"] == "FAILED"
    assert json.loads(status["error"])["error_message"] == "broken"


def test_progress_shows_before_the_result(answering: LocalQueue) -> None:
    job_id = answering.submit({"progress": "half", "gap_s": 60})
    answering.record.wait_for(lambda record: any(call.answered for call in record.dones(job_id)))
    status = answering.status(job_id)
    answering.cancel(job_id)
    assert (status["status"], status["output"]) == ("IN_PROGRESS", "half")


def test_a_swallowed_cancellation_posts_a_result_that_changes_nothing(answering: LocalQueue) -> None:
    # A job the SDK has taken but not started cannot be stopped; its progress shows that it has started.
    job_id = answering.submit({"progress": "started", "result": "survived", "gap_s": 60, "swallow": True})
    answering.record.wait_for(lambda record: record.dones(job_id))
    answering.cancel(job_id)
    answering.record.wait_for(lambda record: len(record.dones(job_id)) == 2)
    assert [call.output for call in answering.record.dones(job_id)] == ["started", "survived"]
    assert answering.status(job_id)["status"] == "CANCELLED"


def test_four_jobs_run_together_and_a_batch_is_as_large_as_what_is_free(answering: LocalQueue) -> None:
    answering.record.wait_for(lambda record: record.takes()[-1].query.get("batch_size") == "4")
    # While the next answer is held back, all five jobs get into the queue.
    held = len(answering.record.takes())
    answering.faults.take.add(Answer(delay_s=1))
    answering.record.wait_for(lambda record: len(record.takes()) > held)
    four = [answering.submit({"progress": "started", "gap_s": 120}) for _ in range(4)]
    fifth = answering.submit({"result": "at last"})
    for job_id in four:
        answering.record.wait_for(lambda record, job_id=job_id: record.dones(job_id))
    assert answering.record.takes(four[0])[0].job_ids == four
    assert answering.status(fifth)["status"] == "IN_QUEUE"
    answering.cancel(four[0])
    assert answering.wait(fifth)["output"] == "at last", "a slot was free again"
    for job_id in four[1:]:
        assert answering.status(job_id)["status"] == "IN_PROGRESS"
        answering.cancel(job_id)


def test_a_blocking_generator_is_stopped_between_its_chunks_only() -> None:
    with LocalQueue(limits=LIMITS) as queue, SdkWorker(queue, "stream_sync", concurrency=2):
        job_id = queue.submit({"yields": ["a"] * 10, "gap_s": 1})
        next(queue.stream(job_id))
        time.sleep(0.2)  # the loop blocks once it has read the answer to its chunk, which nobody can see from here
        queue.send_stop("w1", job_id)
        queue.record.wait_for(lambda record: record.stops(job_id))
        queue.record.wait_for(lambda record: record.pings(job_id) and not record.pings()[-1].job_ids)
        chunks = queue.record.chunks(job_id)
        assert len(chunks) < 10
        assert queue.record.dones(job_id) == []
        assert queue.record.pings()[-1].at_s - chunks[0].at_s >= 0.9, "the stop waited for the loop"
