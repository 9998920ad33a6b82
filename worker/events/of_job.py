"""The facts of one job, each with its id."""

from __future__ import annotations

from dataclasses import dataclass

from worker.events.event import Event


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
class JobChunkUndelivered(Event, name="job.chunk_undelivered"):
    """A chunk of a stream was given up; the job's result still carries it."""

    job_id: str
    reason: str


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
    """The job ended without its answer: the result was given up; `body` is what the client should have had."""

    job_id: str
    reason: str
    body: str
