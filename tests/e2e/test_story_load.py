"""Many jobs at once: each is answered once, and no failure of the platform loses one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from worker.local.process import WorkerProcess
from worker.local.queue import GARBAGE, NOTHING, NULL, RESET, Answer, LocalQueue, State

if TYPE_CHECKING:
    from tests.conftest import StartWorker
    from tests.e2e.conftest import FakeControl

LIMIT_S = 100.0
COUNT = 200
SLOTS = 8
FakeOf = Callable[[WorkerProcess], "FakeControl"]


def job(number: int) -> dict[str, Any]:
    """Return an input whose answer has 1 + number % 10 tokens, in every shape in turn."""
    tokens = 1 + number % 10
    messages = [{"role": "user", "content": f"job {number}"}]
    native = {"messages": messages, "options": {"num_predict": tokens}}
    openai = {"messages": messages, "max_tokens": tokens, "stream_options": {"include_usage": True}}
    return [
        native,
        {**native, "stream": True},
        {"route": "/api/chat", "body": native},
        {"openai_route": "/v1/chat/completions", "openai_input": {**openai, "stream": True}},
    ][number % 4]


def test_two_hundred_jobs_on_eight_slots_and_a_platform_with_faults(
    queue: LocalQueue, start_worker: StartWorker, fake_of: FakeOf
) -> None:
    for answer in (Answer(500), RESET, GARBAGE, NOTHING, NULL, Answer(400)):
        queue.faults.take.add(answer)
    for answer in (Answer(429), Answer(502), RESET, Answer(200, applied=True, delay_s=0.3), Answer(500, applied=True)):
        queue.faults.done.add(answer, 2)
        queue.faults.stream.add(answer)
    ids = [queue.submit(job(number)) for number in range(COUNT)]
    worker = start_worker(MAX_CONCURRENCY=str(SLOTS), OLLAMA_NUM_PARALLEL=str(SLOTS), FAKE_TEXT="one two three four")
    statuses = [queue.wait(job_id, LIMIT_S) for job_id in ids]
    requests = fake_of(worker).stats()["requests"]
    assert worker.stop() == 0

    assert {status["status"] for status in statuses} == {"COMPLETED"}
    finished = {record["job_id"]: record for record in worker.records if record["event"] == "job.finished"}
    assert finished.keys() == set(ids)
    assert [finished[job_id]["output_tokens"] for job_id in ids] == [min(4, 1 + n % 10) for n in range(COUNT)]
    # Each ran once: one request to the server besides the one that loaded the model, one way through the states.
    assert requests["/api/chat"] + requests["/v1/chat/completions"] == COUNT
    for job_id in ids:
        states = [move.state for move in queue.record.history(job_id)]
        assert states == [State.IN_QUEUE, State.IN_PROGRESS, State.COMPLETED]
    assert [record for record in worker.records if record["event"] == "result.undelivered"] == []
    assert most_at_once(queue, ids) <= SLOTS


def most_at_once(queue: LocalQueue, ids: list[str]) -> int:
    """Return how many jobs were in progress at the same time at most."""
    steps = {State.IN_QUEUE: 0, State.IN_PROGRESS: 1, State.COMPLETED: -1}
    moves = sorted((move.at_s, steps[move.state]) for job_id in ids for move in queue.record.history(job_id))
    running = most = 0
    for _, step in moves:
        running += step
        most = max(most, running)
    return most
