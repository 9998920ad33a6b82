"""A worker that is frozen with its server and thawed later: the next job finds a model, or a worker that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import requests

from tests.conftest import MODEL
from worker.local.process import WorkerProcess, free_port
from worker.local.queue import LocalQueue
from worker.pulse import GAP_S

if TYPE_CHECKING:
    from tests.conftest import StartWorker
    from tests.e2e.conftest import FakeControl

LIMIT_S = 60.0
FakeOf = Callable[[WorkerProcess], "FakeControl"]
TextOf = Callable[[list[Any]], str]
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@contextlib.contextmanager
def frozen(worker: WorkerProcess, meanwhile: Callable[[], object]) -> Iterator[None]:
    """Stop the worker, let `meanwhile` happen, stop the server too, and let both go on after a gap that is noticed."""
    server = worker.wait_event("server.spawned", LIMIT_S)["pid"]
    began_s = time.monotonic()
    os.killpg(worker.process.pid, signal.SIGSTOP)
    try:
        meanwhile()
        # What happened meanwhile may have been its end.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server, signal.SIGSTOP)
        time.sleep(max(0.0, began_s + GAP_S + 1.5 - time.monotonic()))  # being frozen is what this is about
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server, signal.SIGCONT)
        os.killpg(worker.process.pid, signal.SIGCONT)
    yield


def unload(fake: FakeControl) -> None:
    body = {"model": MODEL, "keep_alive": 0}
    requests.post(f"{fake.url}/api/generate", json=body, timeout=LIMIT_S).raise_for_status()


def named(worker: WorkerProcess, *wanted: str) -> list[str]:
    return [record["event"] for record in worker.records if record["event"] in wanted]


def test_the_first_jobs_after_a_thaw_find_the_model_loaded_again(
    queue: LocalQueue, start_worker: StartWorker, fake_of: FakeOf, text_of: TextOf
) -> None:
    worker = start_worker(MAX_CONCURRENCY="3", FAKE_TEXT="thawed", FAKE_LOAD_S="0.5")
    worker.wait_event("loop.started", LIMIT_S)
    fake = fake_of(worker)
    assert fake.stats()["loads"] == 1

    with frozen(worker, meanwhile=lambda: unload(fake)):
        jobs = [queue.submit(CHAT) for _ in range(3)]
        statuses = [queue.wait(job_id, LIMIT_S) for job_id in jobs]
    assert [status["status"] for status in statuses] == ["COMPLETED"] * 3
    assert [text_of(status["output"]) for status in statuses] == ["thawed"] * 3
    # The answer may be here before the line is.
    worker.wait_event("model.reloaded", LIMIT_S)
    assert named(worker, "thaw.noticed", "model.reloaded") == ["thaw.noticed", "model.reloaded"]
    assert worker.wait_event("thaw.noticed")["missed_s"] > GAP_S
    assert fake.stats()["loads"] == 2


def test_a_model_that_survived_is_used_as_it_is(queue: LocalQueue, start_worker: StartWorker, fake_of: FakeOf) -> None:
    worker = start_worker()
    worker.wait_event("loop.started", LIMIT_S)
    fake = fake_of(worker)
    with frozen(worker, meanwhile=lambda: None):
        assert queue.wait(queue.submit(CHAT), LIMIT_S)["status"] == "COMPLETED"
    worker.wait_event("thaw.noticed", LIMIT_S)
    assert named(worker, "thaw.noticed", "model.reloaded") == ["thaw.noticed"]
    assert fake.stats()["loads"] == 1


def test_a_server_that_did_not_survive_ends_the_worker(start_worker: StartWorker) -> None:
    worker = start_worker()
    worker.wait_event("loop.started", LIMIT_S)
    server = worker.wait_event("server.spawned", LIMIT_S)["pid"]
    with frozen(worker, meanwhile=lambda: os.kill(server, signal.SIGKILL)):
        assert worker.wait(LIMIT_S) == 13
    assert named(worker, "server.exited", "boot.failed") == ["server.exited", "boot.failed"]


def test_a_request_to_a_thawed_gateway_finds_the_model_loaded_again(start_worker: StartWorker, fake_of: FakeOf) -> None:
    port = free_port()
    worker = start_worker(WORKER_MODE="load_balancer", PORT=str(port), FAKE_TEXT="thawed")
    worker.wait_event("loop.started", LIMIT_S)
    fake = fake_of(worker)

    with frozen(worker, meanwhile=lambda: unload(fake)):
        body = {"model": MODEL, "stream": False, **CHAT}
        reply = requests.post(f"http://127.0.0.1:{port}/api/chat", json=body, timeout=LIMIT_S)
    assert reply.json()["message"]["content"] == "thawed"
    # The answer may be here before the line is.
    worker.wait_event("model.reloaded", LIMIT_S)
    assert named(worker, "thaw.noticed", "model.reloaded") == ["thaw.noticed", "model.reloaded"]
    assert fake.stats()["loads"] == 2
