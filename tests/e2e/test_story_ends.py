"""Every way a worker, its server or a job can end: nothing hangs, nothing is left, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from worker.local.process import WorkerProcess, wait_for
from worker.local.queue import Limits, LocalQueue

if TYPE_CHECKING:
    from tests.conftest import StartWorker, Workers
    from tests.e2e.conftest import FakeControl

LIMIT_S = 60.0
TEXT = " ".join(f"word{n}" for n in range(40))
STREAM = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
LOST = "the connection to the server was lost. Nothing is wrong with the request: send it again"
FakeOf = Callable[[WorkerProcess], "FakeControl"]
TextOf = Callable[[list[Any]], str]


def first_chunk(queue: LocalQueue, job_id: str) -> None:
    next(queue.stream(job_id, LIMIT_S))


def names(worker: WorkerProcess) -> list[str]:
    return [record["event"] for record in worker.records]


def is_quiet(worker: WorkerProcess) -> bool:
    return not any("Traceback" in line or "exception" in line for line in worker.lines)


def end_after_exit_s(worker: WorkerProcess) -> float:
    """Return how long the worker lived on after its server had gone."""
    exited = worker.wait_event("server.exited", LIMIT_S)
    code = worker.wait(LIMIT_S)
    took_s = (time.time_ns() - exited["at_ns"]) / 1e9
    assert code == 13
    return took_s


def test_a_server_that_dies_ends_the_worker_and_fails_its_jobs(
    queue: LocalQueue, start_worker: StartWorker, text_of: TextOf
) -> None:
    worker = start_worker(MAX_CONCURRENCY="3", FAKE_TEXT=TEXT, FAKE_TOKENS_PER_S="20", FAKE_DIE_AT_TOKEN="10")
    jobs = [queue.submit(STREAM) for _ in range(3)]
    took_s = end_after_exit_s(worker)
    for status in (queue.wait(job_id, LIMIT_S) for job_id in jobs):
        assert (status["status"], status["error"]) == ("FAILED", LOST)
    assert text_of(list(queue.stream(jobs[0], LIMIT_S))) == TEXT[: TEXT.index(" word10")]
    assert took_s < 5.0
    failed = worker.wait_event("boot.failed", LIMIT_S)
    assert failed["message"].startswith("the server exited with code 3")
    assert names(worker)[-1] == "worker.stopped"
    assert is_quiet(worker)


def test_a_killed_server_leaves_no_runner(queue: LocalQueue, start_worker: StartWorker, workers: Workers) -> None:
    worker = start_worker(real=True)
    job_id = queue.submit({**STREAM, "options": {"num_predict": 2000}})
    first_chunk(queue, job_id)
    server = worker.wait_event("server.spawned", LIMIT_S)["pid"]
    assert psutil.Process(server).children(recursive=True)
    os.kill(server, signal.SIGKILL)
    assert end_after_exit_s(worker) < 5.0
    assert queue.wait(job_id, LIMIT_S)["error"] == LOST
    assert "the server was killed by signal 9" in worker.wait_event("boot.failed", LIMIT_S)["message"]
    assert workers.marked.are_gone()


def test_a_killed_worker_leaves_nothing(queue: LocalQueue, start_worker: StartWorker, workers: Workers) -> None:
    worker = start_worker(real=True)
    first_chunk(queue, queue.submit({**STREAM, "options": {"num_predict": 2000}}))
    # The worker, its ping process, the server and its runner.
    assert len(workers.marked.processes) == 4
    worker.signal(signal.SIGKILL)
    assert worker.wait(LIMIT_S) == -signal.SIGKILL
    assert workers.marked.are_gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_at_once(queue: LocalQueue, start_worker: StartWorker, number: signal.Signals) -> None:
    worker = start_worker()
    worker.wait_event("loop.started", LIMIT_S)
    queue.record.wait_for(lambda record: record.takes(), LIMIT_S)
    began = time.monotonic()
    worker.signal(number)
    assert worker.wait(LIMIT_S) == 0
    # Its polls would have been held for five seconds.
    assert time.monotonic() - began < queue.limits.take_hold_s
    assert names(worker)[-3:] == ["worker.stopping", "server.stopped", "worker.stopped"]
    assert is_quiet(worker)


def test_a_job_that_meets_the_signal_is_answered_by_the_next_worker(workers: Workers) -> None:
    with LocalQueue(limits=Limits(ping_interval_s=1.0, missed_pings=2)) as queue:
        ending = workers.start(queue, worker_id="ending")
        queue.record.wait_for(lambda record: record.takes(), LIMIT_S)
        ending.signal(signal.SIGTERM)
        jobs = [queue.submit(STREAM) for _ in range(3)]
        assert ending.wait(LIMIT_S) == 0
        workers.start(queue, worker_id="next")
        assert [queue.wait(job_id, LIMIT_S)["status"] for job_id in jobs] == ["COMPLETED"] * 3
        for job_id in jobs:
            assert len(queue.record.dones(job_id)) == 1


def test_a_signal_lets_the_running_job_finish_and_takes_no_other(
    queue: LocalQueue, start_worker: StartWorker, text_of: TextOf
) -> None:
    worker = start_worker(FAKE_TEXT=TEXT, FAKE_TOKENS_PER_S="30", MAX_CONCURRENCY="2")
    running = queue.submit(STREAM)
    first_chunk(queue, running)
    worker.signal(signal.SIGTERM)
    worker.wait_event("worker.stopping", LIMIT_S)
    assert wait_for(lambda: queue.record.takes()[-1].answered is None, LIMIT_S)
    time.sleep(0.8)  # the poll is given up by now; nothing tells
    waiting = queue.submit(STREAM)
    assert worker.wait(LIMIT_S) == 0
    status = queue.wait(running, LIMIT_S)
    assert status["status"] == "COMPLETED"
    assert text_of(status["output"]) == TEXT
    assert queue.status(waiting)["status"] == "IN_QUEUE"
    assert is_quiet(worker)


def test_a_job_longer_than_the_drain_goes_back(queue: LocalQueue, start_worker: StartWorker) -> None:
    worker = start_worker(FAKE_TOKENS="100000", FAKE_TOKENS_PER_S="20", WORKER_DRAIN_TIMEOUT_S="0.3")
    job_id = queue.submit(STREAM)
    first_chunk(queue, job_id)
    assert worker.stop(LIMIT_S) == 0
    assert queue.record.dones(job_id) == []
    assert "job.cancelled" in names(worker)


@pytest.mark.parametrize(
    ("until", "settings"),
    [
        ("weights.requested", {"FAKE_NEVER_ANSWER": "1"}),
        ("load.started", {"FAKE_LOAD_S": "60"}),
        ("source.passed_over", {"model": "absent:1b", "FAKE_NEVER_ANSWER": "1"}),
        ("boot.ready", {}),
        ("loop.started", {}),
    ],
)
def test_a_signal_ends_the_boot_wherever_it_is(start_worker: StartWorker, until: str, settings: dict[str, str]) -> None:
    worker = start_worker(**settings)
    worker.wait_event(until, LIMIT_S)
    assert worker.stop(LIMIT_S) == 0
    assert names(worker).count("worker.stopped") == 1
    assert {"worker.stopping", "server.stopped"} <= set(names(worker))
    assert is_quiet(worker), worker.tail()


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.08, 0.15, 0.25])
def test_a_signal_at_any_moment_ends_the_boot(start_worker: StartWorker, delay_s: float) -> None:
    # While modules are imported, threads start and locks are held: none of them may swallow the signal.
    worker = start_worker(FAKE_LISTEN_DELAY_S="60")
    worker.wait_event("server.spawned", LIMIT_S)
    time.sleep(delay_s)
    assert worker.stop(LIMIT_S) == 0
    assert names(worker)[-1] == "worker.stopped"
    assert is_quiet(worker), worker.tail()


def test_a_server_that_ignores_the_signal_goes_with_its_child(start_worker: StartWorker, workers: Workers) -> None:
    worker = start_worker(FAKE_IGNORE_SIGTERM="1", FAKE_CHILD="1")
    worker.wait_event("loop.started", LIMIT_S)
    worker.signal(signal.SIGTERM)
    worker.wait_event("worker.stopping", LIMIT_S)
    time.sleep(1.0)  # the loop has ended by now, and the server has five seconds
    worker.signal(signal.SIGTERM)
    assert worker.wait(LIMIT_S) == 0
    assert worker.wait_event("server.stopped", LIMIT_S)["return_code"] == -signal.SIGKILL
    assert workers.marked.are_gone()


@pytest.mark.parametrize("slow", [{}, {"first_token_delay_s": 60}], ids=["mid-stream", "before-the-first-token"])
def test_a_stop_signal_stops_that_job_and_no_other(
    queue: LocalQueue, start_worker: StartWorker, fake_of: FakeOf, text_of: TextOf, slow: dict[str, float]
) -> None:
    worker = start_worker(FAKE_TEXT=TEXT, FAKE_TOKENS_PER_S="20", MAX_CONCURRENCY="2")
    worker.wait_event("boot.ready", LIMIT_S)
    fake = fake_of(worker)
    other = queue.submit(STREAM)
    first_chunk(queue, other)
    fake.turn(**slow)
    stopped = queue.submit(STREAM)
    worker.wait_event("job.opened", LIMIT_S, job_id=stopped)
    if not slow:
        first_chunk(queue, stopped)
    assert wait_for(lambda: fake.stats()["requests"].get("/api/chat") == 2, LIMIT_S)
    fake.turn(first_token_delay_s=0)
    queue.cancel(stopped)
    worker.wait_event("job.cancelled", LIMIT_S, job_id=stopped)
    assert wait_for(lambda: fake.stats()["cancelled"] == 1, LIMIT_S)
    # Both slots are at work again: the next job does not wait for the other one.
    following = queue.submit(STREAM)
    first_chunk(queue, following)
    assert text_of(queue.wait(other, LIMIT_S)["output"]) == TEXT
    assert text_of(queue.wait(following, LIMIT_S)["output"]) == TEXT
    assert queue.status(stopped)["status"] == "CANCELLED"
    assert queue.record.dones(stopped) == []
    assert fake.stats()["finished"] == 2


def test_an_overdue_job_is_stopped_too(queue: LocalQueue, start_worker: StartWorker, fake_of: FakeOf) -> None:
    worker = start_worker(FAKE_TOKENS="100000", FAKE_TOKENS_PER_S="20")
    job_id = queue.submit(STREAM, execution_timeout_s=1.0)
    assert queue.wait(job_id, LIMIT_S)["status"] == "TIMED_OUT"
    worker.wait_event("job.cancelled", LIMIT_S, job_id=job_id)
    assert wait_for(lambda: fake_of(worker).stats()["cancelled"] == 1, LIMIT_S)


def test_two_signals_are_no_worse_than_one(queue: LocalQueue, start_worker: StartWorker) -> None:
    worker = start_worker(FAKE_TEXT=TEXT, FAKE_TOKENS_PER_S="30")
    job_id = queue.submit(STREAM)
    first_chunk(queue, job_id)
    for _ in range(3):
        with contextlib.suppress(ProcessLookupError):
            worker.signal(signal.SIGTERM)
        time.sleep(0.05)
    assert worker.wait(LIMIT_S) == 0
    assert queue.wait(job_id, LIMIT_S)["status"] == "COMPLETED"
