from __future__ import annotations

import pytest
import requests

from worker.local.queue import LocalQueue, Refused, State
from worker.local.queue.job import DEPTH_LIMIT, Job, Order


def new_job(**fields: object) -> Job:
    order = Order({"n": 1}, execution_timeout_s=10, ttl_s=100, retention_s=20, **fields)
    return Job("j1", order, submitted_s=0, expires_s=100)


@pytest.mark.parametrize("state", list(State))
def test_two_states_are_not_final(state: State) -> None:
    assert state.is_final == (state.value not in {"IN_QUEUE", "IN_PROGRESS"})


def test_a_worker_gets_id_input_and_the_extras() -> None:
    job = new_job(extras={"webhook": "http://x"})
    assert job.for_worker() == {"id": "j1", "input": {"n": 1}, "webhook": "http://x"}


def test_the_stream_cursor_returns_every_chunk_once() -> None:
    job = new_job()
    assert job.take_stream() == []
    job.chunks += ["a", "b"]
    assert job.take_stream() == ["a", "b"]
    job.chunks += ["c"]
    assert job.take_stream() == ["c"]
    assert job.take_stream() == []


def test_the_first_output_is_the_first_chunk_else_the_result() -> None:
    job = new_job()
    assert job.first_output() is None
    job.finish(State.COMPLETED, 1, output={"whole": True})
    assert job.first_output() == {"whole": True}
    job.chunks += ["a", "b"]
    assert job.first_output() == "a"


def test_a_new_attempt_hides_the_chunks_of_the_old_one_from_the_first_output() -> None:
    job = new_job()
    job.start("w1", 1)
    job.chunks += ["old"]
    job.queue(5)
    job.start("w2", 6)
    assert job.first_output() is None
    job.chunks += ["new"]
    assert job.first_output() == "new"
    assert job.take_stream() == ["old", "new"]


def test_a_job_is_overdue_only_while_it_runs() -> None:
    job = new_job()
    assert not job.is_overdue(1000)
    job.start("w1", 1000)
    assert not job.is_overdue(1010)
    assert job.is_overdue(1010.5)
    job.finish(State.COMPLETED, 1010.5)
    assert not job.is_overdue(2000)


def test_a_job_expires_by_time_to_live_or_by_retention_whichever_is_first() -> None:
    job = new_job()
    assert not job.is_expired(100)
    assert job.is_expired(101)
    job.start("w1", 1)
    job.finish(State.COMPLETED, 10)
    assert not job.is_expired(30)
    assert job.is_expired(31)


def test_a_waiting_job_has_a_status_without_times() -> None:
    assert new_job().status(50) == {"id": "j1", "status": "IN_QUEUE"}


def test_times_are_whole_milliseconds() -> None:
    job = new_job()
    job.queue(1)
    job.start("w1", 1.2344)
    status = job.status(2.3456)
    assert (status["delayTime"], status["executionTime"]) == (234, 1111)


def test_jobs_with_equal_orders_are_different_jobs() -> None:
    assert new_job() != new_job()


def nested(levels: int) -> object:
    value: object = "the end"
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


def test_an_input_nested_deeper_than_it_could_be_handed_on_is_refused() -> None:
    with LocalQueue() as queue:
        deepest = queue.submit(nested(DEPTH_LIMIT))
        taken = requests.get(queue.worker_env()["RUNPOD_WEBHOOK_GET_JOB"].replace("$ID", "w1"), timeout=30)
        assert taken.json() == {"id": deepest, "input": nested(DEPTH_LIMIT)}
        with pytest.raises(Refused, match="nested more than 500 levels"):
            queue.submit(nested(DEPTH_LIMIT + 1))
        url = f"{queue.api_url}/{queue.endpoint_id}"
        for path, body in (("run", {"input": nested(600)}), ("openai/v1/completions", {"prompt": nested(600)})):
            assert requests.post(f"{url}/{path}", json=body, timeout=30).status_code == 400
        assert queue.health()["jobs"]["inQueue"] == 0
