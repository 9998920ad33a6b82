"""RunPod's job loop with its losses taken out: no idle second, no dropped job, a bounded end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import signal
import sys
from collections.abc import Callable
from typing import Any

from runpod import serverless
from runpod.http_client import AsyncClientSession, TooManyRequests
from runpod.serverless.modules import rp_http, rp_logger, rp_ping, rp_scale

from worker import events
from worker.adapter.delivery import Delivery
from worker.adapter.flow import JobFlow

POLL_TIMEOUT_S = 90.0
# The platform answers an empty queue at the end of a long poll; one that answers at once must not be hammered.
PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
# How long an answer may be under way from the platform.
WIRE_S = 0.25
_PR_SET_PDEATHSIG = 1


class Loop(rp_scale.JobScaler):  # type: ignore[misc] # the SDK is published without types
    """Takes jobs as soon as a slot is free, and ends within its limits.

    What it replaces in JobScaler, and why, is in docs/architecture.md; test_sdk_quirks.py shows each defect on
    the original, so that a corrected SDK turns it red.
    """

    flow: JobFlow
    delivery: Delivery
    writer: events.EventWriter
    concurrency: int
    drain_timeout_s: float
    on_start: Callable[[Loop], None]
    _has_ended = False
    _hurried = False

    async def run(self) -> None:
        """Take and run jobs until told to stop, then let the running ones finish."""
        self.current_concurrency = self.concurrency
        self._draining = asyncio.Event()
        self._slot_freed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._drain_limit_s = self.drain_timeout_s
        if self._shutdown_event.is_set():
            self._draining.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            # A handler run by the event loop may write events; one run between two bytecodes may not.
            self._loop.add_signal_handler(number, self._on_signal, number)
        self.on_start(self)
        self.writer.write(events.LoopStarted(concurrency=self.concurrency))
        async with AsyncClientSession() as session:
            stops = asyncio.create_task(self.monitor_stop_signals(session))
            try:
                await self.get_jobs(session)
                await self._drain()
            finally:
                self._has_ended = True
                stops.cancel()
                await asyncio.wait([stops])
                await self.flow.close()

    def is_alive(self) -> bool:
        """Say whether the SDK must go on listening for stop signals: until the last job is over."""
        return not self._has_ended

    def handle_shutdown(self, signum: int, frame: object) -> None:
        """Remember a signal that came before the loop runs; the SDK installs this as the handler."""
        del signum, frame
        self._shutdown_event.set()

    def _on_signal(self, number: signal.Signals) -> None:
        self.writer.write(events.WorkerStopping(reason=number.name))
        self.kill_worker()

    def kill_worker(self, limit_s: float | None = None) -> None:
        """Stop taking jobs; what runs may go on for `limit_s` seconds. Safe from threads and signal handlers."""
        self._shutdown_event.set()
        if hasattr(self, "_loop"):
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._begin_drain, limit_s)

    def _begin_drain(self, limit_s: float | None) -> None:
        if limit_s is not None:
            # Without a server a job is better off with another worker.
            self._drain_limit_s, self._hurried = limit_s, True
        self._draining.set()

    async def get_jobs(self, session: Any) -> None:
        """Take jobs whenever a slot is free, until draining; start each one at once."""
        pause_s = 0.0
        while not self._draining.is_set():
            free = self.concurrency - len(self._running)
            if free <= 0:
                self._slot_freed.clear()
                await self._unless_draining(self._slot_freed.wait())
                continue
            began = self._loop.time()
            jobs, failed = await self._take(session, free)
            for job in jobs:
                self._start(session, job)
            if jobs or (not failed and self._loop.time() - began > 1.0):
                pause_s = 0.0
                continue
            pause_s = min(max(PAUSE_S, pause_s * 2), LONGEST_PAUSE_S if failed else 1.0)
            await self._unless_draining(asyncio.sleep(pause_s))

    async def _take(self, session: Any, free: int) -> tuple[list[dict[str, Any]], bool]:
        """Ask for up to `free` jobs; return them and whether the platform misbehaved."""
        poll = asyncio.wait_for(self.jobs_fetcher(session, free), timeout=POLL_TIMEOUT_S)
        try:
            # The platform may have answered already: such a job would be lost until its pings are missed.
            taken = await self._unless_draining(poll, WIRE_S)
        except asyncio.TimeoutError:
            return [], False
        except TooManyRequests:
            await self._unless_draining(asyncio.sleep(LONGEST_PAUSE_S))
            return [], True
        except Exception as exc:  # noqa: BLE001 - whatever the platform answers, the worker goes on asking
            rp_scale.log.error(f"Taking a job failed: {type(exc).__name__}: {exc}")
            return [], True
        jobs = [job for job in taken or [] if isinstance(job, dict) and isinstance(job.get("id"), str)]
        # A job delivered again after missed pings is the one that runs here already.
        fresh = {job["id"]: job for job in jobs if job["id"] not in self.jobs_tasks}
        return list(fresh.values()), len(jobs) < len(taken or [])

    async def _unless_draining(self, work: Any, grace_s: float = 0.0) -> Any:
        """Await `work`, but give it up `grace_s` seconds after draining begins; a result that is there still counts."""
        task = asyncio.ensure_future(work)
        draining = asyncio.ensure_future(self._draining.wait())
        await asyncio.wait([task, draining], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        if grace_s and not task.done() and not self._hurried:
            await asyncio.wait([task], timeout=grace_s)
        if task.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return None

    def _start(self, session: Any, job: dict[str, Any]) -> None:
        self.job_progress.add(job["id"])
        task = asyncio.create_task(self._run(session, job))
        self._running.add(task)
        self.jobs_tasks[job["id"]] = task
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slot_freed.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            rp_scale.log.error(f"A job ended without an answer: {type(error).__name__}: {error}")

    async def _run(self, session: Any, job: dict[str, Any]) -> None:
        job_id = job["id"]
        try:
            await self.jobs_handler(session, self.config, job)
            tally = self.flow.release(job_id)
            if tally is not None and not self.delivery.has_lost(job_id):
                self.writer.write(events.JobFinished(job_id=job_id, **vars(tally)))
        except asyncio.CancelledError:
            if not self.delivery.has_lost(job_id):
                self.writer.write(events.JobCancelled(job_id=job_id))
        finally:
            self.flow.release(job_id)
            self.delivery.forget(job_id)
            self.job_progress.remove(job_id)
            self.jobs_tasks.pop(job_id, None)

    async def _drain(self) -> None:
        """Wait for running jobs within the limit; the rest is given back by not answering for it."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._drain_limit_s)
        for job_id, task in list(self.jobs_tasks.items()):
            self.delivery.give_up(job_id)
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=1.0)


def _print_whole(text: str, *, flush: bool = True) -> None:
    # print() writes the end of a line on its own, and an event of another thread may come in between.
    sys.stdout.write(f"{text}\n")
    if flush:
        sys.stdout.flush()


def install(loop: type[Loop], delivery: Delivery) -> None:
    """Put our loop, our delivery and a mortal ping process in the places the SDK looks them up."""
    rp_logger.print = serverless.print = _print_whole
    loop.delivery = delivery
    rp_scale.JobScaler = loop
    rp_http._transmit = delivery.transmit  # noqa: SLF001 - the SDK has no other way in
    ping_loop = rp_ping.Heartbeat.process_loop

    def mortal_ping_loop(*args: Any, **kwargs: Any) -> None:
        # Without this the ping process outlives a killed worker and goes on reporting its jobs as running.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ping_loop(*args, **kwargs)

    rp_ping.Heartbeat.process_loop = staticmethod(mortal_ping_loop)
    # Python 3.14 would import everything once more for it, and tie its life to another process than this one.
    rp_ping.Process = multiprocessing.get_context("fork").Process
