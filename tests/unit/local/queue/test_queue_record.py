from __future__ import annotations

import threading
from typing import Any

import pytest

from worker.local.queue import Call, Move, Record, State


def call(kind: str, *job_ids: str, body: Any = None) -> Call:
    return Call(kind, "w1", at_s=0.0, job_ids=list(job_ids), body=body)


def test_calls_are_found_by_kind_and_job(record: Record) -> None:
    kept = [record.opened(call(kind, job)) for kind in ("take", "stop", "done", "stream", "ping") for job in "ab"]
    found = [record.takes("a"), record.stops("a"), record.dones("a"), record.chunks("a"), record.pings("a")]
    assert [calls[0] for calls in found] == kept[::2]
    assert {len(calls) for calls in found} == {1}
    assert record.takes() == kept[:2]
    assert record.takes("nobody") == []


def test_a_batch_is_found_under_each_of_its_jobs(record: Record) -> None:
    batch = record.opened(call("take", "a", "b"))
    assert record.takes("a") == record.takes("b") == [batch]


def test_an_open_call_has_no_status_until_it_is_answered(record: Record) -> None:
    kept = record.opened(call("take"))
    assert kept.answered is None
    record.answered(kept, 204)
    assert record.takes()[0].answered == 204


@pytest.mark.parametrize(
    ("body", "output", "is_final"),
    [
        ({"output": 1}, 1, True),
        ({"status": "IN_PROGRESS", "output": "half"}, "half", False),
        ({"error": "x"}, None, True),
        ("no json", None, True),
        (None, None, True),
    ],
)
def test_a_body_says_whether_it_is_progress(body: Any, output: Any, *, is_final: bool) -> None:
    done = call("done", "a", body=body)
    assert (done.output, done.is_final) == (output, is_final)


def test_the_history_is_that_of_one_job(record: Record) -> None:
    moves = [Move("a", State.IN_QUEUE, 1, None), Move("b", State.IN_QUEUE, 2, None), Move("a", State.FAILED, 3, "w1")]
    for move in moves:
        record.moved(move)
    assert record.history("a") == [moves[0], moves[2]]


def test_waiting_ends_when_another_thread_brings_what_is_waited_for(record: Record) -> None:
    thread = threading.Timer(0.2, lambda: record.opened(call("ping", "a")))
    thread.start()
    record.wait_for(lambda seen: seen.pings("a"))
    assert len(record.pings("a")) == 1
    thread.join()


def test_waiting_in_vain_ends_in_a_timeout(record: Record) -> None:
    with pytest.raises(TimeoutError, match=r"0\.1 s"):
        record.wait_for(lambda seen: seen.pings(), timeout_s=0.1)


def test_a_record_that_may_not_grow_forgets_the_oldest() -> None:
    record = Record(2)
    kept = [record.opened(call("done", job_id)) for job_id in "abc"]
    for job_id in "abc":
        record.moved(Move(job_id, State.COMPLETED, 1.0, "w1"))
    assert record.dones() == kept[1:]
    assert [len(record.history(job_id)) for job_id in "abc"] == [0, 1, 1]
