"""A log without the worker's events, told in the worker's words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.events import SPANS, Span
from worker.timeline import stamps
from worker.timeline.parse import Entry

# Spans a foreign log can fill. Its load happens inside the first request, so what comes before and after it in that
# request gets spans of its own.
FOREIGN_SPANS: dict[str, Span] = {
    "startup": Span("container.begun", "server.configured", "container start to Ollama's first line"),
    "server": SPANS["server"],
    "weights": Span("weights.requested", "weights.placed", "pulling the model"),
    "wait": SPANS["wait"],
    "open": SPANS["open"],
    "schedule": Span("load.requested", "load.started", "request to runner start: model looked up, memory asked"),
    "load": SPANS["load"],
    "prefill": Span("prefill.started", "job.token_received", "prompt in, first token out"),
    "answer": Span("answer.started", "job.finished", "prompt in, answer out: the log does not tell the first token"),
    "decode": SPANS["decode"],
}

_INFERENCE = ("/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_EMBEDDING = ("/api/embed", "/api/embeddings", "/v1/embeddings")
_HTTP_OK = 200
_SAME = {
    "server.configured": "server.spawned",
    "gpu.discovered": "server.answered",
    "sdk_loop.announced": "loop.started",
}


def adapt(boot: Sequence[Entry]) -> tuple[Entry, ...]:
    """Add to a start's entries the worker events they amount to.

    The start of a request is its access line's time less its latency; the first token is its end less the runner's
    decode time. A request in which the runner did nothing is a preload and no job.
    """
    told = _Told(_runs(boot), server_answers=not any(entry.name == "gpu.discovered" for entry in boot))
    derived = [made for entry in boot for made in told.by(entry)]
    return tuple(sorted((*boot, *derived), key=lambda entry: (entry.at_ns, entry.seq)))


@dataclass(frozen=True)
class _Run:
    """One task of the runner: when it was launched at the earliest, and what its last lines say of it."""

    launched_ns: int
    said: dict[str, Any]

    def delay_ns(self, end: Entry) -> int:
        """How much later than its whole second a request ended, for the runner to have had the time it reports."""
        spent_ms = sum(float(self.said.get(key, 0)) for key in ("prefill_ms", "decode_ms"))
        missing_ns = self.launched_ns + round(spent_ms * 1e6) - end.at_ns
        return min(max(missing_ns, 0), stamps.SECOND_NS - 1) if end.coarse else 0


def _runs(boot: Sequence[Entry]) -> tuple[_Run, ...]:
    """Collect the runner's tasks in order of launch; it may tell of one after the access line of its request."""
    runs: list[_Run] = []
    by_task: dict[Any, _Run] = {}
    for entry in boot:
        task = entry.fields.get("task")
        if entry.name == "slot.launched":
            runs.append(_Run(entry.at_ns, {}))
            by_task[task] = runs[-1]
        elif entry.name in {"prompt.timed", "output.timed"} and runs:
            numbers = {key: entry.number(key) for key in entry.fields if key != "task"}
            by_task.get(task, runs[-1]).said.update(
                {key: number for key, number in numbers.items() if number is not None}
            )
    return tuple(runs)


@dataclass
class _Told:
    """What has been told so far, as far as later lines need it."""

    runs: tuple[_Run, ...]
    server_answers: bool
    _load_times: list[tuple[int, int]] = field(default_factory=list)
    _spawned_ns: int | None = None
    _launched: int = 0
    _claimed: int = 0
    _sdk_job: str | None = None
    _requests: int = 0

    def by(self, entry: Entry) -> Iterator[Entry]:
        """Yield the events that `entry` completes."""
        if entry.name == "slot.launched":
            self._launched += 1
        elif not entry.exact:
            return
        elif entry.name in _SAME:
            self.server_answers |= entry.name == "gpu.discovered"
            yield _event(entry, _SAME[entry.name])
        elif entry.name in {"runner.spawned", "runner.started"}:
            yield from self._load(entry)
        elif entry.name in {"sdk_job.started", "sdk_job.finished"}:
            yield from self._sdk(entry)
        elif entry.name == "request.finished":
            yield from self._access(entry)

    def _load(self, entry: Entry) -> Iterator[Entry]:
        if entry.name == "runner.spawned":
            # Older versions start runners to discover devices, too: those before the API answers load nothing.
            if self.server_answers and self._spawned_ns is None:
                self._spawned_ns = entry.at_ns
                yield _event(entry, "load.started")
        elif self._spawned_ns is not None:
            self._load_times.append((self._spawned_ns, entry.at_ns))
            self._spawned_ns = None
            yield _event(entry, "load.finished")

    def _sdk(self, entry: Entry) -> Iterator[Entry]:
        job_id = str(entry.fields["job_id"])
        if entry.name == "sdk_job.started":
            self._sdk_job = job_id
            yield _event(entry, "job.accepted", job_id=job_id)
        elif self._sdk_job == job_id:
            self._sdk_job = None
            yield _event(entry, "job.finished", job_id=job_id)

    def _access(self, entry: Entry) -> Iterator[Entry]:
        took_ns = stamps.duration_ns(entry.text("took"))
        route = entry.fields.get("route")
        if took_ns is None:
            return
        if route == "/api/pull":
            yield _event(entry, "weights.requested", entry.at_ns - took_ns)
            yield _event(entry, "weights.placed", source="pull")
        elif route in _EMBEDDING:
            self._claim()
        elif route in _INFERENCE:
            run = self._claim()
            if run is not None:
                entry = dataclasses.replace(entry, at_ns=entry.at_ns + run.delay_ns(entry))
            if run is not None or not self.runs or entry.fields.get("status") != _HTTP_OK:
                yield from self._request(entry, entry.at_ns - took_ns, run.said if run is not None else {})

    def _claim(self) -> _Run | None:
        """Take the oldest task that no request has ended yet; None when the runner was not asked."""
        if self._claimed == self._launched:
            return None
        self._claimed += 1
        return self.runs[self._claimed - 1]

    def _request(self, entry: Entry, start_ns: int, said: dict[str, Any]) -> Iterator[Entry]:
        self._requests += 1
        job_id = self._sdk_job or f"request {self._requests}"
        if self._sdk_job is None:
            yield _event(entry, "job.accepted", start_ns, job_id=job_id)
        yield _event(entry, "job.opened", start_ns, job_id=job_id, route=entry.fields["route"])
        load = next(((a, b) for a, b in self._load_times if start_ns <= a and b <= entry.at_ns), None)
        if load is not None:
            yield _event(entry, "load.requested", start_ns)
        if entry.fields.get("status") != _HTTP_OK:
            yield _event(entry, "job.failed", job_id=job_id, code="server", status=entry.fields.get("status"))
            return
        prefill_ns = load[1] if load else start_ns
        finished = _event(entry, "job.finished", job_id=job_id, **said)
        decode_ms = finished.number("decode_ms")
        if decode_ms is None:
            yield _event(entry, "answer.started", prefill_ns, job_id=job_id)
        else:
            yield _event(entry, "prefill.started", prefill_ns, job_id=job_id)
            token_ns = max(prefill_ns, entry.at_ns - round(decode_ms * 1e6))
            yield _event(entry, "job.token_received", token_ns, job_id=job_id)
        yield finished


def _event(origin: Entry, name: str, at_ns: int | None = None, **fields: Any) -> Entry:
    return Entry(max(0, origin.at_ns if at_ns is None else at_ns), origin.seq, name, fields, coarse=origin.coarse)
