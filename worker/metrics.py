"""The worker's figures for Prometheus, made from its events."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from worker import events
from worker.events import SPANS, Event

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NS = 1e9
# A resident model answers a short prompt in tens of milliseconds; a job may queue at the server for minutes.
_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_JOB_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counts what `observe` is told. Not safe from several threads at once; an EventWriter calls it from one."""

    def __init__(self) -> None:
        """Begin with a registry of its own, so that nothing else in the process is counted in."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._accepted_ns: dict[str, int] = {}
        self._seen_ns: dict[str, int] = {}
        self._slots = 0
        self._make_job_metrics()
        self._make_worker_metrics()
        self._observers: dict[type[Event], Callable[..., None]] = {
            events.JobAccepted: self._accepted,
            events.JobTokenReceived: self._token,
            events.JobFinished: self._finished,
            events.JobFailed: lambda event, at_ns: self._ended(event.job_id, at_ns, "failed", str(event.status)),
            events.JobCancelled: lambda event, at_ns: self._ended(event.job_id, at_ns, "cancelled"),
            events.LoopStarted: self._started,
            events.ResultRetried: lambda _event, _at_ns: self._retries.inc(),
            events.ResultUndelivered: self._lost,
        }

    def observe(self, event: Event, at_ns: int) -> None:
        """Take in one event that happened at `at_ns`, ns since 1970."""
        # Of events that come again and again only the first is part of the boot.
        if event.name not in self._seen_ns:
            self._seen_ns[event.name] = at_ns
            self._note_spans(event.name, at_ns)
        observer = self._observers.get(type(event))
        if observer is not None:
            observer(event, at_ns)

    def text(self) -> bytes:
        """Return the figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def _make_job_metrics(self) -> None:
        to = self._registry
        self._jobs = Counter(
            "worker_jobs", "Jobs that ended; status is that of an error", ["outcome", "status"], registry=to
        )
        self._running = Gauge("worker_jobs_running", "Jobs accepted and not ended", registry=to)
        self._waiting = Gauge(
            "worker_jobs_waiting", "Running jobs beyond the slots: they wait at the server", registry=to
        )
        self._tokens = Counter("worker_tokens", "Tokens as the server counts them", ["kind"], registry=to)
        self._ttft = Histogram(
            "worker_ttft_seconds", "From a job's acceptance to its first token", buckets=_TTFT_S, registry=to
        )
        self._job = Histogram("worker_job_seconds", "From a job's acceptance to its end", buckets=_JOB_S, registry=to)
        self._retries = Counter("worker_results_retried", "Results the platform did not take at once", registry=to)
        self._losses = Counter("worker_results_undelivered", "Results that were given up", registry=to)

    def _make_worker_metrics(self) -> None:
        to = self._registry
        self._slots_gauge = Gauge("worker_slots", "Jobs the worker runs at once", registry=to)
        self._spans = Gauge("worker_boot_span_seconds", "How long a part of the boot took", ["span"], registry=to)

    def _note_spans(self, name: str, at_ns: int) -> None:
        for span_name, span in SPANS.items():
            began_ns = self._seen_ns.get(span.start)
            if span.end == name and began_ns is not None and not name.startswith("job."):
                self._spans.labels(span_name).set((at_ns - began_ns) / NS)

    def _started(self, event: events.LoopStarted, _at_ns: int) -> None:
        self._slots = event.concurrency
        self._slots_gauge.set(event.concurrency)

    def _accepted(self, event: events.JobAccepted, at_ns: int) -> None:
        self._accepted_ns[event.job_id] = at_ns
        self._count_running()

    def _token(self, event: events.JobTokenReceived, at_ns: int) -> None:
        began_ns = self._accepted_ns.get(event.job_id)
        if began_ns is not None:
            self._ttft.observe((at_ns - began_ns) / NS)

    def _finished(self, event: events.JobFinished, at_ns: int) -> None:
        self._tokens.labels("prompt").inc(event.prompt_tokens or 0)
        self._tokens.labels("output").inc(event.output_tokens or 0)
        self._ended(event.job_id, at_ns, "finished")

    def _lost(self, event: events.ResultUndelivered, at_ns: int) -> None:
        self._losses.inc()
        self._ended(event.job_id, at_ns, "undelivered")

    def _ended(self, job_id: str, at_ns: int, outcome: str, status: str = "") -> None:
        # A failure nobody foresaw is told twice: as what it was, and as what the sender was told.
        began_ns = self._accepted_ns.pop(job_id, None)
        if began_ns is not None:
            self._jobs.labels(outcome, status).inc()
            self._job.observe((at_ns - began_ns) / NS)
            self._count_running()

    def _count_running(self) -> None:
        self._running.set(len(self._accepted_ns))
        self._waiting.set(max(0, len(self._accepted_ns) - self._slots))
