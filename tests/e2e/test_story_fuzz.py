"""Generated inputs through a whole worker: each job ends, nobody sees the worker's insides, and it lives on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fakes.job_inputs import JOBS, LEVELS, deepened, examples
from worker.local.process import WorkerProcess
from worker.local.queue import LocalQueue, Refused

if TYPE_CHECKING:
    from tests.conftest import Workers

LIMIT_S = 100.0
BATCH = 20
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def queue() -> Iterator[LocalQueue]:
    with LocalQueue() as running:
        yield running


@pytest.fixture(scope="module")
def worker(queue: LocalQueue, module_workers: Workers) -> WorkerProcess:
    started = module_workers.start(queue, FAKE_TEXT="fine", MAX_CONCURRENCY="8")
    started.wait_event("loop.started", LIMIT_S)
    return started


def submitted(queue: LocalQueue, job_input: Any) -> str | None:
    """Return the job's id, or None for an input the platform refuses by itself."""
    try:
        return queue.submit(job_input)
    except Refused:
        return None


# What fails is one input among twenty: looking for a smaller set of them would cost minutes and say no more.
@settings(
    deadline=None,
    database=None,
    max_examples=math.ceil(examples(160) / BATCH),
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.timeout(3600)
@given(templates=st.lists(JOBS, min_size=BATCH, max_size=BATCH), levels=LEVELS)
def test_every_generated_job_ends_and_the_worker_lives_on(
    queue: LocalQueue, worker: WorkerProcess, templates: list[Any], levels: int
) -> None:
    ids = [job_id for job in templates if (job_id := submitted(queue, deepened(job, levels))) is not None]
    for job_id in ids:
        status = queue.wait(job_id, LIMIT_S)
        assert status["status"] in {"COMPLETED", "FAILED"}, status
        assert ("error" in status) == (status["status"] == "FAILED"), status
        told = json.dumps([status, *queue.stream(job_id, LIMIT_S)])
        assert "Traceback" not in told
        assert "the worker failed on this job" not in told, "an input the worker did not foresee"
        assert len(queue.record.dones(job_id)) == 1
    assert worker.process.poll() is None, worker.tail()
    status = queue.wait(queue.submit(CHAT), LIMIT_S)
    assert status["output"][0]["message"]["content"] == "fine"


def test_the_worker_ends_as_it_should_after_all_that(queue: LocalQueue, worker: WorkerProcess) -> None:
    jobs = queue.health()["jobs"]
    assert (jobs["inQueue"], jobs["inProgress"]) == (0, 0)
    assert jobs["completed"] > 0
    assert jobs["failed"] > 0
    own = [line for line in worker.lines if not line.startswith('{"') and "Traceback" in line]
    assert own == []
    assert worker.stop() == 0
