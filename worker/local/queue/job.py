"""One job: what was asked, where it stands, what it has produced."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from worker.local.queue.errors import Refused

# Far more than anybody sends, and less than Python's encoder can follow on whatever stack it stands.
DEPTH_LIMIT = 500


class State(str, enum.Enum):
    """Where a job stands, in Runpod's words."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def is_final(self) -> bool:
        """Say whether only an explicit retry can move the job on."""
        return self not in {State.IN_QUEUE, State.IN_PROGRESS}


@dataclass(frozen=True)
class Order:
    """What a client asked for. `extras` are the top-level keys that travel to the worker with the input."""

    job_input: Any
    execution_timeout_s: float
    ttl_s: float
    retention_s: float
    low_priority: bool = False
    webhook: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    is_sync: bool = False

    def __post_init__(self) -> None:
        """Raise Refused for an input that could not be handed to a worker."""
        if _is_deeper([self.job_input], DEPTH_LIMIT):
            raise Refused(f"the input is nested more than {DEPTH_LIMIT} levels deep")


@dataclass(eq=False)
class Job:
    """An order and its fate. Times are seconds of the store's clock."""

    job_id: str
    order: Order
    submitted_s: float
    expires_s: float
    state: State = State.IN_QUEUE
    queued_s: float = 0.0
    started_s: float | None = None
    heard_s: float = 0.0
    finished_s: float | None = None
    worker_id: str | None = None
    retries: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    chunks: list[Any] = field(default_factory=list)
    attempt_start: int = 0
    stream_cursor: int = 0

    def queue(self, since_s: float) -> None:
        """Wait for a worker, again or for the first time; earlier output is forgotten, sent chunks are not."""
        self.state = State.IN_QUEUE
        self.queued_s = since_s
        self.started_s = self.finished_s = self.worker_id = None
        self.result = {}
        self.attempt_start = len(self.chunks)

    def start(self, worker_id: str, now_s: float) -> None:
        """Belong to a worker from now on."""
        self.state = State.IN_PROGRESS
        self.worker_id = worker_id
        self.started_s = self.heard_s = now_s

    def finish(self, state: State, now_s: float, **result: Any) -> None:
        """Reach a final state; `result` holds `output` and `error` when there are any."""
        self.state = state
        self.finished_s = now_s
        self.result = result

    def is_overdue(self, now_s: float) -> bool:
        """Say whether the job has been running for longer than it may."""
        is_running = self.state is State.IN_PROGRESS and self.started_s is not None
        return is_running and now_s - (self.started_s or 0.0) > self.order.execution_timeout_s

    def is_lost(self, now_s: float, silence_s: float) -> bool:
        """Say whether no ping has named the job for too long: its worker, or its worker's memory of it, is gone."""
        return self.state is State.IN_PROGRESS and now_s - self.heard_s > silence_s

    def is_expired(self, now_s: float) -> bool:
        """Say whether the job must vanish: its time to live is over, or its result was kept long enough."""
        is_forgotten = self.finished_s is not None and now_s - self.finished_s > self.order.retention_s
        return is_forgotten or now_s > self.expires_s

    def take_stream(self) -> list[Any]:
        """Return the chunks no earlier call has returned."""
        fresh = self.chunks[self.stream_cursor :]
        self.stream_cursor = len(self.chunks)
        return fresh

    def first_output(self) -> Any:
        """Return the first chunk of the last attempt, else the final output, else None."""
        attempt = self.chunks[self.attempt_start :]
        return attempt[0] if attempt else self.result.get("output")

    def for_worker(self) -> dict[str, Any]:
        """Return what a worker receives: `id`, `input` and the order's extras."""
        return {"id": self.job_id, "input": self.order.job_input, **self.order.extras}

    def status(self, now_s: float) -> dict[str, Any]:
        """Return what /status answers: ids, state, `delayTime` and `executionTime` in ms, output and error."""
        document: dict[str, Any] = {"id": self.job_id, "status": self.state.value, **self.result}
        if self.started_s is not None:
            end_s = now_s if self.finished_s is None else self.finished_s
            document["delayTime"] = _ms(self.started_s - self.queued_s)
            document["executionTime"] = _ms(end_s - self.started_s)
            document["workerId"] = self.worker_id
        if self.retries:
            document["retries"] = self.retries
        return document


def _is_deeper(level: list[Any], limit: int) -> bool:
    for _ in range(limit + 1):
        inner = [value for value in level if isinstance(value, (dict, list))]
        if not inner:
            return False
        level = [item for value in inner for item in (value.values() if isinstance(value, dict) else value)]
    return True


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
