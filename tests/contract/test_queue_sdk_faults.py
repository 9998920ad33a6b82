"""The SDK's production loop against a queue that misbehaves, and against signals."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.fakes.sdk_process import SdkWorker
from worker.local.queue import (
    EMPTY,
    GARBAGE,
    HTML,
    NOTHING,
    NULL,
    RESET,
    WITHOUT_ID,
    WITHOUT_INPUT,
    Answer,
    Limits,
    LocalQueue,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = Limits(take_hold_s=1, stop_hold_s=1, ping_interval_s=1, missed_pings=30)
QUICK = Limits(take_hold_s=0.2, stop_hold_s=0.2, ping_interval_s=1, missed_pings=2)


@pytest.fixture(scope="module")
def answering() -> Iterator[LocalQueue]:
    """A queue with one worker whose handler is an async function, four jobs at a time."""
    with LocalQueue(limits=LIMITS) as queue, SdkWorker(queue, "answer", concurrency=4):
        yield queue


@pytest.fixture
def queue(answering: LocalQueue) -> LocalQueue:
    """The same queue once its worker is idle again."""
    answering.record.wait_for(lambda record: record.takes()[-1].query.get("batch_size") == "4")
    return answering


def test_bad_takes_are_repeated_at_once_and_lose_nothing(queue: LocalQueue) -> None:
    answers = [NOTHING, Answer(400), Answer(401), Answer(404), Answer(500), HTML, EMPTY, GARBAGE, NULL]
    answers += [WITHOUT_ID, WITHOUT_INPUT, Answer(200, "{}"), RESET]
    seen = len(queue.record.takes())
    for answer in answers:
        queue.faults.take.add(answer)
    queue.record.wait_for(lambda record: len(record.takes()) > seen + len(answers))
    tried = [take.answered for take in queue.record.takes()[seen:]]
    expected = [answer.status for answer in answers]
    assert tried[: len(expected)] == expected or tried[1 : len(expected) + 1] == expected, "one poll may have been open"
    assert queue.wait(queue.submit({"result": "after all that"}))["output"] == "after all that"


def test_500_for_a_result_is_tried_three_times_and_429_for_a_take_waits_five_seconds(queue: LocalQueue) -> None:
    # Both take five seconds, so they are looked at together.
    queue.faults.done.add(Answer(500), times=5)
    jobs = [queue.submit({"result": "x"}) for _ in range(2)]
    queue.record.wait_for(lambda record: all(record.dones(job_id) for job_id in jobs))
    queue.faults.take.add(Answer(429))
    queue.record.wait_for(lambda record: any(take.answered == 429 for take in record.takes()))

    queue.record.wait_for(
        lambda record: sum(call.answered is not None for job in jobs for call in record.dones(job)) == 6
    )
    answers = {job_id: [call.answered for call in queue.record.dones(job_id)] for job_id in jobs}
    dropped, kept = sorted(jobs, key=lambda job_id: answers[job_id] != [500, 500, 500])
    assert answers == {dropped: [500, 500, 500], kept: [500, 500, 200]}
    assert queue.status(kept)["status"] == "COMPLETED"
    assert queue.status(dropped)["status"] == "IN_PROGRESS"
    assert queue.record.pings(dropped), "while its result is posted, a job is in progress"
    queue.cancel(dropped)
    for job_id in jobs:
        first, second, third = (call.at_s for call in queue.record.dones(job_id))
        assert second - first >= 1.9
        assert third - second >= 2.9

    queue.record.wait_for(lambda record: record.takes()[-1].answered != 429)
    takes = queue.record.takes()
    refused = next(number for number, take in enumerate(takes) if take.answered == 429)
    assert takes[refused + 1].at_s - takes[refused].at_s >= 5


@pytest.mark.parametrize("answer", [Answer(400), Answer(429), RESET])
def test_other_failures_of_a_post_are_not_tried_again(queue: LocalQueue, answer: Answer) -> None:
    queue.faults.done.add(answer)
    dropped = queue.submit({"result": "dropped"})
    queue.record.wait_for(lambda record: record.dones(dropped))
    after = queue.submit({"result": "after"})
    queue.wait(after)
    assert len(queue.record.dones(dropped)) == 1
    assert queue.status(dropped)["status"] == "IN_PROGRESS"
    queue.cancel(dropped)


def test_a_job_delivered_twice_runs_twice_and_ends_once(queue: LocalQueue) -> None:
    job_id = queue.submit({"result": "twice", "gap_s": 0.5})
    queue.record.wait_for(lambda record: record.takes(job_id))
    queue.deliver_again(job_id)
    queue.record.wait_for(lambda record: len(record.dones(job_id)) == 2)
    assert queue.wait(job_id)["output"] == "twice"
    assert len(queue.record.takes(job_id)) == 2
    assert [move.state for move in queue.record.history(job_id)] == [
        State.IN_QUEUE,
        State.IN_PROGRESS,
        State.COMPLETED,
    ]


def test_sigterm_lets_a_running_job_end_and_the_loop_return() -> None:
    with LocalQueue(limits=QUICK) as queue, SdkWorker(queue, "answer") as worker:
        assert queue.record.takes()[0].query == {"gpu": "LOCAL", "job_in_progress": "0"}, "one slot, no batch"
        job_id = queue.submit({"result": "in time", "gap_s": 1})
        queue.record.wait_for(lambda record: record.takes(job_id))
        worker.terminate()
        assert queue.wait(job_id)["output"] == "in time"
        code, output = worker.end()
        assert code == 0
        assert "start() has returned" in output


def test_a_job_taken_while_the_loop_ends_is_lost_and_goes_to_the_next_worker() -> None:
    with LocalQueue(limits=dataclasses.replace(QUICK, take_hold_s=20)) as queue:
        with SdkWorker(queue, "answer") as worker:
            worker.terminate()
            # The part that runs jobs looks for the end ten times a second; the pings of its sibling process count
            # the seconds meanwhile. From then on only the held take poll keeps the loop alive.
            pings = len(queue.record.pings())
            queue.record.wait_for(lambda record: len(record.pings()) >= pings + 2)
            job_id = queue.submit({"result": "whose?"})
            code, output = worker.end()
        assert code == 0
        assert "Jobs in queue: 1" in output
        assert queue.record.dones(job_id) == []
        with SdkWorker(queue, "answer"):
            status = queue.wait(job_id)
        assert (status["output"], status["retries"]) == ("whose?", 1)
