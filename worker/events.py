"""Every fact the worker reports: one closed vocabulary, one JSON line each, and the spans between them."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, ClassVar

Listener = Callable[["Event", int], None]
# A boot writes some twenty events beside the server's log.
RECENT_EVENTS = 64
VOCABULARY: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """A fact. Subclasses name it `noun.past-participle`; their fields end in their unit."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls, name: str) -> None:
        """Enter the subclass into the vocabulary; a name can be taken once."""
        if name in VOCABULARY:
            raise TypeError(f"event {name!r} is defined twice")
        cls.name = name
        VOCABULARY[name] = cls


@dataclass(frozen=True)
class ContainerStarted(Event, name="container.started"):
    """start.sh ran its first line; stamped with the time taken there."""


@dataclass(frozen=True)
class WorkerStarted(Event, name="worker.started"):
    """Python reached the first line of handler.py."""

    pid: int
    version: str


@dataclass(frozen=True)
class ConfigLoaded(Event, name="config.loaded"):
    """The environment was read and is consistent."""

    model: str
    concurrency: int


@dataclass(frozen=True)
class ServerSpawned(Event, name="server.spawned"):
    """The server process exists."""

    pid: int
    argv: list[str]


@dataclass(frozen=True)
class ServerLogged(Event, name="server.logged"):
    """One line of the server or its runner, stamped when it arrived."""

    line: str


@dataclass(frozen=True)
class ServerAnswered(Event, name="server.answered"):
    """The server answered HTTP 200 (its own "Listening" line comes earlier and means less)."""

    version: str


@dataclass(frozen=True)
class ServerExited(Event, name="server.exited"):
    """The server ended without having been asked to."""

    return_code: int


@dataclass(frozen=True)
class ServerStopped(Event, name="server.stopped"):
    """The server and everything it started are gone because we asked."""

    return_code: int


@dataclass(frozen=True)
class GpuJudged(Event, name="gpu.judged"):
    """Whether the chosen CUDA backend has code for the devices here: native, jit, unusable or unknown.

    `upstream` is what Ollama would have taken by itself, empty for the CPU.
    """

    backend: str
    outcome: str
    reason: str
    upstream: str


@dataclass(frozen=True)
class SdkImportStarted(Event, name="sdk_import.started"):
    """`import runpod` began."""


@dataclass(frozen=True)
class SdkImportFinished(Event, name="sdk_import.finished"):
    """`import runpod` is done and its quirks are corrected."""

    version: str


@dataclass(frozen=True)
class WeightsRequested(Event, name="weights.requested"):
    """The search for the model's weights began."""

    model: str


@dataclass(frozen=True)
class SourcePassedOver(Event, name="source.passed_over"):
    """A source could not or should not provide the weights."""

    source: str
    reason: str


@dataclass(frozen=True)
class WeightsProgressed(Event, name="weights.progressed"):
    """A long transfer moved on; at most one line a second."""

    source: str
    done_bytes: int
    total_bytes: int
    rate_bytes_per_s: float
    eta_s: float | None


@dataclass(frozen=True)
class WeightsPlaced(Event, name="weights.placed"):
    """The weights are whole and where the server reads them."""

    model: str
    source: str


@dataclass(frozen=True)
class LoadStarted(Event, name="load.started"):
    """The server was asked to make the model resident."""

    model: str


@dataclass(frozen=True)
class LoadFinished(Event, name="load.finished"):
    """The model is resident."""

    model: str
    size_bytes: int
    size_vram_bytes: int
    context_length: int


@dataclass(frozen=True)
class BootReady(Event, name="boot.ready"):
    """Nothing is left to do before the first job."""

    model: str


@dataclass(frozen=True)
class BootFailed(Event, name="boot.failed"):
    """The worker cannot serve."""

    code: str
    message: str
    exit_code: int


@dataclass(frozen=True)
class LoopStarted(Event, name="loop.started"):
    """The SDK's loop asks for jobs."""

    concurrency: int


@dataclass(frozen=True)
class JobAccepted(Event, name="job.accepted"):
    """The platform handed over a job."""

    job_id: str


@dataclass(frozen=True)
class JobOpened(Event, name="job.opened"):
    """The job was understood and its request was sent to the server."""

    job_id: str
    route: str
    model: str


@dataclass(frozen=True)
class JobTokenReceived(Event, name="job.token_received"):
    """The first frame of the answer came from the server."""

    job_id: str


@dataclass(frozen=True)
class JobChunkPosted(Event, name="job.chunk_posted"):
    """The platform took the first chunk of the answer."""

    job_id: str


@dataclass(frozen=True)
class JobFinished(Event, name="job.finished"):
    """The answer is complete and delivered. Durations and counts are the server's own."""

    job_id: str
    chunks: int
    body_bytes: int
    prompt_tokens: int | None
    output_tokens: int | None
    prefill_ms: float | None
    decode_ms: float | None


@dataclass(frozen=True)
class JobFailed(Event, name="job.failed"):
    """The job ended with an error its sender can read."""

    job_id: str
    code: str
    status: int
    message: str


@dataclass(frozen=True)
class JobCancelled(Event, name="job.cancelled"):
    """The platform stopped the job; the server stopped generating."""

    job_id: str


@dataclass(frozen=True)
class ResultRetried(Event, name="result.retried"):
    """The platform did not take a result; it will be sent again."""

    job_id: str
    attempt: int
    reason: str


@dataclass(frozen=True)
class ResultUndelivered(Event, name="result.undelivered"):
    """A result was given up; `body` is what the client should have had."""

    job_id: str
    reason: str
    body: str


@dataclass(frozen=True)
class WorkerStopping(Event, name="worker.stopping"):
    """No new job is taken from here on."""

    reason: str


@dataclass(frozen=True)
class WorkerStopped(Event, name="worker.stopped"):
    """The last line of a worker."""

    exit_code: int


@dataclass(frozen=True)
class Span:
    """The time between two events of one worker, or of one job when both carry its id."""

    start: str
    end: str
    meaning: str


SPANS: dict[str, Span] = {
    "container": Span("container.started", "worker.started", "start.sh and the start of Python"),
    "launch": Span("worker.started", "server.spawned", "imports, the server's environment"),
    "config": Span("server.spawned", "config.loaded", "the configuration is checked"),
    "server": Span("server.spawned", "server.answered", "process start to HTTP 200"),
    "sdk": Span("sdk_import.started", "sdk_import.finished", "import runpod"),
    "weights": Span("weights.requested", "weights.placed", "finding and placing the weights"),
    "load": Span("load.started", "load.finished", "weights into (video) memory"),
    "loop": Span("boot.ready", "loop.started", "the SDK's start until it asks for a job"),
    "wait": Span("loop.started", "job.accepted", "no job was there"),
    "open": Span("job.accepted", "job.opened", "job understood, request sent"),
    "prefill": Span("job.opened", "job.token_received", "prompt in, first token out"),
    "post": Span("job.token_received", "job.chunk_posted", "first chunk to the platform"),
    "decode": Span("job.token_received", "job.finished", "first token to the end of the answer"),
}


class EventWriter:
    """The one place that prints events. Safe to use from threads and from the event loop."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        """Write to `stream`, or to standard output."""
        self._stream = stream if stream is not None else sys.stdout
        self._lock = threading.Lock()
        self._seq = 0
        self._recent: deque[tuple[Event, int]] = deque(maxlen=RECENT_EVENTS)
        self._listener: Listener | None = None

    def write(self, event: Event, at_ns: int | None = None) -> None:
        """Print `event` as one JSON line stamped with wall-clock nanoseconds and a sequence number.

        `at_ns` is for facts that were timed before this writer existed.
        """
        with self._lock:
            self._seq += 1
            at_ns = at_ns if at_ns is not None else time.time_ns()
            record = {"at_ns": at_ns, "seq": self._seq, "event": event.name}
            record.update(dataclasses.asdict(event))
            # ASCII escapes keep lone surrogates from killing the line; one write keeps lines of other
            # processes (the SDK's ping child) from landing in the middle of it.
            line = json.dumps(record, separators=(",", ":"), allow_nan=False) + os.linesep
            self._stream.write(line)
            self._stream.flush()
            if not isinstance(event, ServerLogged):
                self._recent.append((event, at_ns))
                if self._listener is not None:
                    self._listener(event, at_ns)

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each event and its time, beginning with the latest that were written.

        The server's log is left out. There is one listener; it must not write events itself.
        """
        with self._lock:
            self._listener = listener
            for event, at_ns in self._recent:
                listener(event, at_ns)
