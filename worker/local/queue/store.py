"""The jobs and the only places where they change state; no network, no threads, any clock."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from worker.local.queue.bell import Bell
from worker.local.queue.errors import JobUnknown, Refused
from worker.local.queue.job import Job, Order, State
from worker.local.queue.limits import Limits
from worker.local.queue.record import Move, Record
from worker.local.queue.workers import Workers


class JobStore:
    """All jobs of one endpoint. Every method takes effect at once; `bell` rings after each change."""

    def __init__(self, limits: Limits, record: Record, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without jobs. `clock` returns seconds and never goes back."""
        self.bell = Bell()
        self._silence_s = limits.ping_interval_s * limits.missed_pings
        self.workers = Workers(self._silence_s)
        self.on_final: Callable[[Job], None] = lambda _: None
        self._limits = limits
        self._record = record
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._again: list[str] = []
        self._retried = 0

    def submit(self, order: Order) -> Job:
        """Queue a new job."""
        job_id = f"{'sync-' if order.is_sync else ''}{uuid.uuid4()}-u1"
        now_s = self._clock()
        job = self._jobs[job_id] = Job(job_id, order, submitted_s=now_s, expires_s=now_s + order.ttl_s)
        self._queue(job)
        return job

    def get(self, job_id: str) -> Job:
        """Return a job; raises JobUnknown."""
        try:
            return self._jobs[job_id]
        except KeyError:
            raise JobUnknown(f"job {job_id} does not exist or has expired") from None

    def status(self, job: Job) -> dict[str, Any]:
        """Return the status document of a job as of now."""
        return job.status(self._clock())

    def take(self, worker_id: str, count: int) -> list[Job]:
        """Hand up to `count` jobs to a worker: second deliveries first, low priority last, else oldest first."""
        now_s = self._clock()
        self.workers.meet(worker_id, now_s)
        again = [self._jobs[job_id] for job_id in self._again[:count] if job_id in self._jobs]
        del self._again[:count]
        waiting = [job for job in self._jobs.values() if job.state is State.IN_QUEUE and job not in again]
        waiting.sort(key=lambda job: (job.order.low_priority, job.submitted_s))
        taken = [*again, *waiting[: count - len(again)]]
        for job in taken:
            if job.state is State.IN_QUEUE:
                job.start(worker_id, now_s)
                self._moved(job)
        return taken

    def ping(self, worker_id: str, job_ids: list[str], *, healthy: bool = True) -> None:
        """Note a sign of life of a worker and of the jobs it says it has, or its report that it is about to exit."""
        now_s = self._clock()
        self.workers.ping(worker_id, now_s, healthy=healthy)
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is not None and job.worker_id == worker_id:
                job.heard_s = now_s

    def give_back(self, jobs: list[Job]) -> None:
        """Undo a take whose answer did not reach the worker."""
        for job in jobs:
            if job.state is State.IN_PROGRESS:
                self._queue(job, since_s=job.queued_s)

    def deliver_again(self, job_id: str) -> None:
        """Hand this job out once more at the next take, whatever its state."""
        self._again.append(self.get(job_id).job_id)
        self.bell.ring()

    def append(self, job_id: str, outputs: list[Any]) -> None:
        """Add chunks to a job's stream; a job that has ended ignores them."""
        job = self.get(job_id)
        if not job.state.is_final:
            job.chunks.extend(outputs)
            self.bell.ring()

    def progress(self, job_id: str, output: Any) -> None:
        """Show `output` as the output of a running job; a job that has ended ignores it."""
        job = self.get(job_id)
        if job.state is State.IN_PROGRESS:
            job.result = {"output": output}
            self.bell.ring()

    def finish(self, job_id: str, body: dict[str, Any]) -> None:
        """End a job with what its worker posted; only the first result of a job counts."""
        job = self.get(job_id)
        if not job.state.is_final:
            result = {key: body[key] for key in ("output", "error") if key in body}
            self._end(job, State.FAILED if body.get("error") else State.COMPLETED, **result)

    def cancel(self, job_id: str) -> Job:
        """End a job that has not ended, and tell its worker to stop."""
        job = self.get(job_id)
        if not job.state.is_final:
            self._stop_worker(job)
            self._end(job, State.CANCELLED)
        return job

    def stop(self, worker_id: str, *job_ids: str) -> None:
        """Tell a worker to stop jobs without touching them here."""
        self.workers.stop(worker_id, *job_ids)
        self.bell.ring()

    def retry(self, job_id: str) -> Job:
        """Queue a FAILED or TIMED_OUT job again under its id; raises Refused for others."""
        job = self.get(job_id)
        if job.state not in {State.FAILED, State.TIMED_OUT}:
            raise Refused(f"only FAILED and TIMED_OUT jobs can be retried, job {job_id} is {job.state.value}")
        job.retries = 0
        self._retried += 1
        self._queue(job)
        return job

    def purge(self) -> int:
        """Forget the jobs that wait for a worker and return how many they were."""
        waiting = [job.job_id for job in self._jobs.values() if job.state is State.IN_QUEUE]
        for job_id in waiting:
            del self._jobs[job_id]
        self.bell.ring()
        return len(waiting)

    def keep(self, job_id: str, ttl_s: float) -> None:
        """Let a job expire `ttl_s` seconds from now."""
        self.get(job_id).expires_s = self._clock() + ttl_s

    def sweep(self) -> None:
        """Apply time: expired jobs vanish, overdue ones time out, those no ping names are queued again."""
        now_s = self._clock()
        self.workers.give_up_silent(now_s)
        for job in list(self._jobs.values()):
            if job.is_expired(now_s):
                self._stop_worker(job)
                del self._jobs[job.job_id]
                self.bell.ring()
            elif job.is_overdue(now_s):
                self._stop_worker(job)
                self._end(job, State.TIMED_OUT, error="the job ran longer than its executionTimeout")
            elif job.is_lost(now_s, self._silence_s):
                self._recover(job)

    def health(self) -> dict[str, Any]:
        """Return what /health answers."""
        states = [job.state for job in self._jobs.values()]
        busy = {job.worker_id for job in self._jobs.values() if job.state is State.IN_PROGRESS and job.worker_id}
        jobs = {
            "completed": states.count(State.COMPLETED),
            "failed": states.count(State.FAILED) + states.count(State.TIMED_OUT),
            "inProgress": states.count(State.IN_PROGRESS),
            "inQueue": states.count(State.IN_QUEUE),
            "retried": self._retried,
        }
        return {"jobs": jobs, "workers": self.workers.counts(busy)}

    def listing(self) -> list[dict[str, Any]]:
        """Return the status documents of all jobs, oldest first."""
        return [self.status(job) for job in self._jobs.values()]

    def _recover(self, job: Job) -> None:
        if job.retries >= self._limits.max_retries:
            self._end(job, State.FAILED, error=f"the worker was lost; gave up after {job.retries} retries")
            return
        job.retries += 1
        self._retried += 1
        self._queue(job)

    def _stop_worker(self, job: Job) -> None:
        if job.state is State.IN_PROGRESS and job.worker_id is not None:
            self.workers.stop(job.worker_id, job.job_id)

    def _queue(self, job: Job, since_s: float | None = None) -> None:
        job.queue(self._clock() if since_s is None else since_s)
        self._moved(job)

    def _end(self, job: Job, state: State, **result: Any) -> None:
        job.finish(state, self._clock(), **result)
        self._moved(job)
        self.on_final(job)

    def _moved(self, job: Job) -> None:
        self._record.moved(Move(job.job_id, job.state, self._clock(), job.worker_id))
        self.bell.ring()
