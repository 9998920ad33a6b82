"""Everything that happened at the queue, kept for assertions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from worker.local.queue.job import State


@dataclass
class Call:
    """One request of a worker. `at_s` is the monotonic time it was complete, `answered` the status it got.

    `answered` is None while the request is open and stays None when the worker went away or was reset. An open
    request may not have had its effect on the job yet; an answered one has.
    `job_ids` are the ids in the path or in the answer (take, stop) or reported as in progress (ping).
    """

    kind: str
    worker_id: str
    at_s: float
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    job_ids: list[str] = field(default_factory=list)
    body: Any = None
    size_bytes: int = 0
    answered: int | None = None

    @property
    def output(self) -> Any:
        """Return the `output` of the body, None when there is none."""
        return self.body.get("output") if isinstance(self.body, dict) else None

    @property
    def is_final(self) -> bool:
        """Say whether a done call carries a result and not just progress."""
        return not (isinstance(self.body, dict) and self.body.get("status") == State.IN_PROGRESS.value)


@dataclass(frozen=True)
class Move:
    """A job entered a state at `at_s`, seconds of the store's clock."""

    job_id: str
    state: State
    at_s: float
    worker_id: str | None


class Record:
    """Calls and moves in order of arrival; written on the queue's thread, read from any."""

    def __init__(self, keep: int | None = None) -> None:
        """Start empty; keep everything, or only the last `keep` of each for a queue that runs for days."""
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque(maxlen=keep)
        self._moves: deque[Move] = deque(maxlen=keep)

    def opened(self, call: Call) -> Call:
        """Keep a request that has just been read."""
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()
        return call

    def answered(self, call: Call, status: int | None) -> None:
        """Complete a kept request with the status its sender got."""
        with self._changed:
            call.answered = status
            self._changed.notify_all()

    def moved(self, move: Move) -> None:
        """Keep a change of a job's state."""
        with self._changed:
            self._moves.append(move)
            self._changed.notify_all()

    def calls(self, kind: str, job_id: str | None = None) -> list[Call]:
        """Return the calls of a kind (take, stop, done, stream, ping), of one job when `job_id` is given."""
        with self._changed:
            return [c for c in self._calls if c.kind == kind and (job_id is None or job_id in c.job_ids)]

    def takes(self, job_id: str | None = None) -> list[Call]:
        """Return the requests for jobs, or those answered with this job."""
        return self.calls("take", job_id)

    def stops(self, job_id: str | None = None) -> list[Call]:
        """Return the polls for stop signals, or those answered with this job."""
        return self.calls("stop", job_id)

    def dones(self, job_id: str | None = None) -> list[Call]:
        """Return the posts of results and of progress."""
        return self.calls("done", job_id)

    def chunks(self, job_id: str | None = None) -> list[Call]:
        """Return the posts of stream chunks."""
        return self.calls("stream", job_id)

    def pings(self, job_id: str | None = None) -> list[Call]:
        """Return the pings, or those that reported this job in progress."""
        return self.calls("ping", job_id)

    def history(self, job_id: str) -> list[Move]:
        """Return the states a job went through, also after the job itself has expired."""
        with self._changed:
            return [move for move in self._moves if move.job_id == job_id]

    def wait_for(self, condition: Callable[[Record], Any], timeout_s: float = 30.0) -> None:
        """Return when `condition(record)` is true; raise TimeoutError after `timeout_s` seconds."""
        deadline_s = time.monotonic() + timeout_s
        while not condition(self):
            with self._changed:
                # Short waits because a change between the check and the wait rings no one.
                self._changed.wait(0.05)
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the queue did not see what was waited for within {timeout_s:g} s")
