from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.queue_peers import Clock, HttpClient, HttpWorker
from worker.local.queue import Limits, LocalQueue, Record
from worker.local.queue.job import Job, Order
from worker.local.queue.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests

    from tests.fakes.queue_peers import NewClient, NewWorker, Submit


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def limits() -> Limits:
    return Limits(
        execution_timeout_s=60,
        ttl_s=1000,
        run_retention_s=300,
        ping_interval_s=10,
        missed_pings=3,
        max_retries=2,
    )


@pytest.fixture
def store(limits: Limits, record: Record, clock: Clock) -> JobStore:
    return JobStore(limits, record, clock)


@pytest.fixture
def submit(store: JobStore, limits: Limits) -> Submit:
    """Queue a job whose order is the default one except for the given fields."""

    def _submit(job_input: Any = "in", **fields: Any) -> Job:
        policy = {
            "execution_timeout_s": limits.execution_timeout_s,
            "ttl_s": limits.ttl_s,
            "retention_s": limits.run_retention_s,
            **fields,
        }
        return store.submit(Order(job_input, **policy))

    return _submit


@pytest.fixture
def queue() -> Iterator[LocalQueue]:
    """A running queue whose empty polls end soon."""
    with LocalQueue(limits=Limits(take_hold_s=0.2, stop_hold_s=0.2)) as running:
        yield running


@pytest.fixture
def sessions() -> Iterator[list[requests.Session]]:
    opened: list[requests.Session] = []
    yield opened
    for session in opened:
        session.close()


@pytest.fixture
def new_worker(sessions: list[requests.Session]) -> NewWorker:
    def _new(queue: LocalQueue, worker_id: str = "w1") -> HttpWorker:
        worker = HttpWorker(queue, worker_id)
        sessions.append(worker.session)
        return worker

    return _new


@pytest.fixture
def new_client(sessions: list[requests.Session]) -> NewClient:
    def _new(queue: LocalQueue) -> HttpClient:
        client = HttpClient(queue)
        sessions.append(client.session)
        return client

    return _new


@pytest.fixture
def worker(queue: LocalQueue, new_worker: NewWorker) -> HttpWorker:
    return new_worker(queue)


@pytest.fixture
def client(queue: LocalQueue, new_client: NewClient) -> HttpClient:
    return new_client(queue)
