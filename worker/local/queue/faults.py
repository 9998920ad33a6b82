"""Misbehaviour on demand: what the queue answers instead of what it should."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One scripted answer to a worker.

    The queue waits `delay_s` seconds, then answers `status` with `body`, or resets the connection. With neither
    `status` nor `reset` the answer is the normal one, only late. With `applied` the queue first does what was asked
    (keeps the result, hands out the job) and then answers as scripted: the worker believes it failed.
    """

    status: int | None = None
    body: str = ""
    content_type: str = "application/json"
    delay_s: float = 0.0
    reset: bool = False
    applied: bool = False

    @property
    def is_normal(self) -> bool:
        """Say whether the worker gets the normal answer."""
        return self.status is None and not self.reset


NORMAL = Answer()
RESET = Answer(reset=True)
NOTHING = Answer(204)
NULL = Answer(200, "null")
EMPTY = Answer(200)
GARBAGE = Answer(200, "<html>not json</html>")
HTML = Answer(200, "<html>a proxy's page</html>", content_type="text/html")
WITHOUT_INPUT = Answer(200, '{"id": "without-input"}')
WITHOUT_ID = Answer(200, '{"input": {}}')


class Script:
    """Answers to come, in order; when it is over, the queue behaves. Safe to extend while the queue runs."""

    def __init__(self, answers: Iterable[Answer] = ()) -> None:
        """Begin with `answers`, one request each."""
        self._lock = threading.Lock()
        self._coming = deque(answers)
        self._always: Answer | None = None

    def add(self, answer: Answer, times: int = 1) -> None:
        """Append `answer` for `times` requests."""
        with self._lock:
            self._coming.extend([answer] * times)

    def always(self, answer: Answer | None) -> None:
        """Give `answer` whenever nothing else is scripted; None ends that."""
        with self._lock:
            self._always = answer

    @property
    def left(self) -> int:
        """Return how many answers are still to come."""
        with self._lock:
            return len(self._coming)

    def clear(self) -> None:
        """Behave from now on."""
        with self._lock:
            self._coming.clear()
            self._always = None

    def next(self) -> Answer:
        """Return the answer for the request at hand."""
        with self._lock:
            if self._coming:
                return self._coming.popleft()
            return self._always or NORMAL


class Faults:
    """One script for each call a worker makes. `surplus` jobs are handed out on top of every batch asked for."""

    def __init__(self, *, surplus: int = 0, **scripts: Iterable[Answer]) -> None:
        """Begin with the answers given by call: `take` (single and batch), `stop`, `done`, `stream`, `ping`."""
        self.surplus = surplus
        self.take = Script(scripts.pop("take", ()))
        self.stop = Script(scripts.pop("stop", ()))
        self.done = Script(scripts.pop("done", ()))
        self.stream = Script(scripts.pop("stream", ()))
        self.ping = Script(scripts.pop("ping", ()))
        if scripts:
            raise TypeError(f"no worker makes these calls: {', '.join(scripts)}")
