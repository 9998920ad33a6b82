"""A worker starts, loads a real model, and answers in every shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from worker.events import VOCABULARY
from worker.local.process import WorkerProcess
from worker.local.queue import LocalQueue

if TYPE_CHECKING:
    from tests.conftest import Workers

LIMIT_S = 100.0
MESSAGES = [{"role": "user", "content": "Count: one, two,"}]
FEW = {"num_predict": 5, "temperature": 0}
TextOf = Callable[[list[Any]], str]


@pytest.fixture(scope="module")
def queue() -> Iterator[LocalQueue]:
    with LocalQueue() as running:
        yield running


@pytest.fixture(scope="module")
def first_job(queue: LocalQueue) -> str:
    """Waits for the worker from before its start, as the job that causes a cold start does."""
    return queue.submit({"messages": MESSAGES, "stream": True, "options": FEW})


@pytest.fixture(scope="module")
def worker(queue: LocalQueue, first_job: str, module_workers: Workers) -> WorkerProcess:
    started = module_workers.start(queue, real=True)
    started.wait_event("job.finished", LIMIT_S, job_id=first_job)
    return started


def run(queue: LocalQueue, job_input: dict[str, Any]) -> list[Any]:
    status = queue.wait(queue.submit(job_input), LIMIT_S)
    assert status["status"] == "COMPLETED", status
    return status["output"]


def positions(worker: WorkerProcess, *names: str) -> list[int]:
    """Return where each event first stands in the stream."""
    order = [record["event"] for record in worker.records]
    return [order.index(name) for name in names]


def in_order(worker: WorkerProcess, *names: str) -> bool:
    found = positions(worker, *names)
    return found == sorted(found)


def test_the_events_of_a_cold_start_come_in_their_order(worker: WorkerProcess) -> None:
    assert in_order(worker, "container.started", "worker.started", "server.spawned", "sdk_import.started")
    assert in_order(worker, "server.spawned", "weights.requested", "weights.placed", "load.started")
    # The configuration is checked meanwhile: nothing but the end waits for it.
    assert in_order(worker, "server.spawned", "config.loaded", "boot.ready")
    assert in_order(worker, "server.spawned", "server.answered", "load.started", "load.finished", "boot.ready")
    assert in_order(worker, "sdk_import.started", "sdk_import.finished", "boot.ready", "loop.started", "job.accepted")
    assert in_order(worker, "job.accepted", "job.opened", "job.token_received", "job.chunk_posted", "job.finished")


def test_every_event_is_of_the_vocabulary_and_numbered_without_a_gap(worker: WorkerProcess) -> None:
    records = list(worker.records)
    assert {record["event"] for record in records} <= VOCABULARY.keys()
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert not [line for line in worker.lines if "Traceback" in line]


def test_the_first_job_has_streamed(queue: LocalQueue, first_job: str, worker: WorkerProcess, text_of: TextOf) -> None:
    chunks = list(queue.stream(first_job, LIMIT_S))
    assert chunks == queue.status(first_job)["output"]
    assert len(chunks) > 1
    assert text_of(chunks)
    assert json.loads(chunks[-1])["done"] is True
    finished = worker.wait_event("job.finished", LIMIT_S, job_id=first_job)
    assert (finished["chunks"], finished["output_tokens"]) == (len(chunks), FEW["num_predict"])


def test_the_same_question_has_the_same_answer_in_every_shape(
    queue: LocalQueue, first_job: str, worker: WorkerProcess, text_of: TextOf
) -> None:
    expected = text_of(queue.status(first_job)["output"])
    openai = {"messages": MESSAGES, "max_tokens": FEW["num_predict"], "temperature": 0}
    body = {"messages": MESSAGES, "options": FEW}
    shapes = [
        {"messages": MESSAGES, "options": FEW},
        {"route": "/api/chat", "body": {**body, "stream": True}},
        {"openai_route": "/v1/chat/completions", "openai_input": {**openai, "stream": True}},
    ]
    assert [text_of(run(queue, shape)) for shape in shapes] == [expected] * len(shapes)
    assert worker.process.poll() is None


def test_prompts_are_completed_and_models_listed(queue: LocalQueue, worker: WorkerProcess) -> None:
    (answer,) = run(queue, {"prompt": "One, two,", "options": FEW})
    assert answer["response"]
    (tags,) = run(queue, {"route": "/api/tags"})
    assert [model["name"] for model in tags["models"]] == ["smollm2:135m"]
    assert worker.process.poll() is None
