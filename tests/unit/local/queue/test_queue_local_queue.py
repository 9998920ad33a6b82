from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
import requests

from worker.local.queue import JobUnknown, Limits, LocalQueue

if TYPE_CHECKING:
    from tests.fakes.queue_peers import HttpWorker, NewWorker


def test_the_urls_are_those_of_the_listening_server(queue: LocalQueue) -> None:
    assert queue.base_url.startswith("http://127.0.0.1:")
    assert queue.api_url == f"{queue.base_url}/v2"
    assert queue.openai_url == f"{queue.base_url}/v2/{queue.endpoint_id}/openai/v1"
    assert requests.get(f"{queue.api_url}/{queue.endpoint_id}/health", timeout=30).ok


def test_the_environment_of_a_worker_is_complete(queue: LocalQueue) -> None:
    root = f"{queue.api_url}/{queue.endpoint_id}"
    assert queue.worker_env("w7") == {
        "RUNPOD_WEBHOOK_GET_JOB": f"{root}/job-take/$ID?gpu=LOCAL",
        "RUNPOD_WEBHOOK_POST_OUTPUT": f"{root}/job-done/$RUNPOD_POD_ID/$ID?gpu=LOCAL",
        "RUNPOD_WEBHOOK_POST_STREAM": f"{root}/job-stream/$RUNPOD_POD_ID/$ID?gpu=LOCAL",
        "RUNPOD_WEBHOOK_PING": f"{root}/ping/$RUNPOD_POD_ID?gpu=LOCAL",
        "RUNPOD_POD_ID": "w7",
        "RUNPOD_AI_API_KEY": "local",
        "RUNPOD_ENDPOINT_ID": queue.endpoint_id,
        "RUNPOD_PING_INTERVAL": "10000",
        "RUNPOD_DEBUG_LEVEL": "INFO",
    }


def test_the_ping_interval_is_never_less_than_the_sdk_survives() -> None:
    with LocalQueue(limits=Limits(ping_interval_s=0.2)) as queue:
        assert queue.worker_env()["RUNPOD_PING_INTERVAL"] == "1000"


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        LocalQueue(port=taken.getsockname()[1]).start()
    with pytest.raises(OverflowError):
        LocalQueue(port=70_000).start()


def test_stopping_ends_held_polls_and_the_thread_and_frees_the_port(new_worker: NewWorker) -> None:
    before = set(threading.enumerate())
    queue = LocalQueue(limits=Limits(take_hold_s=300))
    queue.start()
    answers: list[int] = []
    worker = new_worker(queue)
    poll = threading.Thread(target=lambda: answers.append(worker.take().status_code))
    poll.start()
    queue.record.wait_for(lambda record: record.takes())
    queue.stop()
    poll.join()
    assert answers == [204]
    assert set(threading.enumerate()) <= before
    with pytest.raises(requests.ConnectionError):
        requests.get(queue.base_url, timeout=30)
    queue.stop()


def test_stopping_does_not_wait_for_clients_without_end(new_worker: NewWorker) -> None:
    queue = LocalQueue()
    queue.start()
    worker = new_worker(queue)
    failures: list[Exception] = []

    def ask() -> None:
        try:
            worker.session.post(f"{worker.root}/runsync", json={"input": {}}, timeout=120)
        except requests.ConnectionError as error:
            failures.append(error)

    client = threading.Thread(target=ask)
    client.start()
    queue.record.wait_for(lambda _: queue.health()["jobs"]["inQueue"])
    queue.stop()
    client.join()
    assert len(failures) == 1


def test_waiting_returns_the_final_status(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    thread = threading.Timer(0.1, worker.done, [job_id, {"output": 1}])
    thread.start()
    assert queue.wait(job_id)["output"] == 1
    thread.join()


def test_waiting_for_too_long_says_where_the_job_is(queue: LocalQueue) -> None:
    with pytest.raises(TimeoutError, match=r"still IN_QUEUE after 0\.1 s"):
        queue.wait(queue.submit("in"), timeout_s=0.1)


def test_the_stream_yields_each_chunk_when_it_comes(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    stream = queue.stream(job_id)
    for number in range(3):
        worker.chunk(job_id, number)
        assert next(stream) == number
    thread = threading.Timer(0.1, worker.done, [job_id, {}])
    thread.start()
    assert list(stream) == []
    thread.join()
    assert list(queue.stream(job_id)) == [0, 1, 2], "a new iterator begins at the first chunk"


def test_a_silent_stream_is_a_timeout(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    worker.chunk(job_id, "only")
    stream = queue.stream(job_id, timeout_s=0.1)
    assert next(stream) == "only"
    with pytest.raises(TimeoutError):
        next(stream)


def test_unknown_jobs_are_an_error_of_the_caller(queue: LocalQueue) -> None:
    with pytest.raises(JobUnknown):
        queue.status("nobody")
    with pytest.raises(JobUnknown):
        queue.wait("nobody")
    with pytest.raises(JobUnknown):
        next(queue.stream("nobody"))


def test_a_policy_from_python_may_be_as_short_as_a_test_needs(queue: LocalQueue) -> None:
    job_id = queue.submit("in", ttl_s=0.1)
    with pytest.raises(JobUnknown):
        queue.wait(job_id)


def test_two_queues_do_not_know_each_other(queue: LocalQueue, new_worker: NewWorker) -> None:
    with LocalQueue(limits=Limits(take_hold_s=0)) as other:
        job_id = queue.submit("in")
        assert new_worker(other).take().status_code == 204
        with pytest.raises(JobUnknown):
            other.status(job_id)


def test_jobs_may_be_sent_from_many_threads(queue: LocalQueue, worker: HttpWorker) -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(queue.submit(number) for number in range(20))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = worker.take_batch(200).json()
    assert sorted(job["id"] for job in taken) == sorted(ids)
    assert len(set(ids)) == 100


def test_times_in_the_record_are_monotonic_time(queue: LocalQueue, worker: HttpWorker) -> None:
    before_s = time.monotonic()
    job_id = queue.submit("in")
    worker.take()
    take, moves = queue.record.takes(job_id)[0], queue.record.history(job_id)
    assert before_s <= moves[0].at_s <= take.at_s <= moves[1].at_s <= time.monotonic()
