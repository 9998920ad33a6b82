"""The half of Runpod's API that workers call: take, stop, done, stream, ping."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from worker.local.queue.errors import HungUp, Refused, Unauthorized
from worker.local.queue.exchange import Exchange, Reply
from worker.local.queue.faults import Faults
from worker.local.queue.job import Job
from worker.local.queue.limits import Limits
from worker.local.queue.record import Call, Record
from worker.local.queue.store import JobStore

UTF8_MAX_BYTES = 4


class WorkerSide:
    """The worker's routes over the jobs of a store."""

    def __init__(self, store: JobStore, record: Record, faults: Faults, limits: Limits, *, api_key: str | None) -> None:
        """Serve the jobs of `store`; None as `api_key` lets everybody in."""
        self._store = store
        self._exchange = Exchange(record)
        self._faults = faults
        self._limits = limits
        self._api_key = api_key
        self._is_closing = False

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Return the routes under `prefix`, the endpoint's URL path."""
        handler, faults = self._exchange.handler, self._faults
        return [
            web.get(f"{prefix}/job-take/{{worker}}", handler("take", faults.take, self._take)),
            web.get(f"{prefix}/job-take-batch/{{worker}}", handler("take", faults.take, self._take_batch)),
            web.get(f"{prefix}/job-stop/{{worker}}", handler("stop", faults.stop, self._stop)),
            web.post(f"{prefix}/job-done/{{worker}}/{{job}}", handler("done", faults.done, self._done)),
            web.post(f"{prefix}/job-stream/{{worker}}/{{job}}", handler("stream", faults.stream, self._stream)),
            web.get(f"{prefix}/ping/{{worker}}", handler("ping", faults.ping, self._ping)),
        ]

    def close(self) -> None:
        """Answer every held poll at once, now and later."""
        self._is_closing = True
        self._store.bell.ring()

    async def _take(self, request: web.Request, call: Call) -> Reply:
        jobs = await self._take_jobs(request, call, 1)
        if not jobs:
            return Reply(204)
        return Reply(document=jobs[0].for_worker(), undo=lambda: self._store.give_back(jobs))

    async def _take_batch(self, request: web.Request, call: Call) -> Reply:
        size = request.query.get("batch_size", "1")
        if not size.isdecimal() or int(size) < 1:
            raise Refused('"batch_size" must be a positive whole number')
        jobs = await self._take_jobs(request, call, int(size) + self._faults.surplus)
        if not jobs:
            return Reply(204)
        return Reply(document=[job.for_worker() for job in jobs], undo=lambda: self._store.give_back(jobs))

    async def _take_jobs(self, request: web.Request, call: Call, count: int) -> list[Job]:
        def look() -> list[Job]:
            # Users report that production answers a wrong key like an empty queue.
            return self._store.take(call.worker_id, count) if self._is_authorized(request) else []

        jobs = await self._hold(request, self._limits.take_hold_s, look)
        call.job_ids = [job.job_id for job in jobs]
        return jobs

    async def _stop(self, request: web.Request, call: Call) -> Reply:
        self._authorize(request)
        workers = self._store.workers
        job_ids = await self._hold(request, self._limits.stop_hold_s, lambda: workers.take_stops(call.worker_id))
        call.job_ids = job_ids
        if not job_ids:
            return Reply(204)
        return Reply(document={"jobsToStop": job_ids}, undo=lambda: workers.stop(call.worker_id, *job_ids))

    async def _hold(self, request: web.Request, hold_s: float, look: Callable[[], list[Any]]) -> list[Any]:
        """Return what `look` finds as soon as it finds something, or an empty list after `hold_s` seconds."""
        deadline_s = time.monotonic() + hold_s
        while True:
            # The kernel may know that the worker is gone while the loop does not yet: one turn of the loop reads
            # the end of the connection, so nothing is handed to somebody who no longer listens.
            await asyncio.sleep(0)
            if request.transport is None or request.transport.is_closing():
                raise HungUp("the worker closed its poll")
            found = look()
            left_s = deadline_s - time.monotonic()
            if found or left_s <= 0 or self._is_closing:
                return found
            await self._store.bell.wait(left_s)

    async def _done(self, request: web.Request, call: Call) -> Reply:
        self._authorize(request)
        job_id = request.match_info["job"]
        if call.size_bytes > self._limits.done_bytes:
            # What users of production report: the post is refused, the job COMPLETED and without output.
            self._store.finish(job_id, {})
            raise Refused(f"the result has {call.size_bytes} bytes, {self._limits.done_bytes} are allowed")
        body = _object(call)
        if call.is_final:
            self._store.finish(job_id, body)
        else:
            self._store.progress(job_id, body.get("output"))
        return Reply(document={})

    async def _stream(self, request: web.Request, call: Call) -> Reply:
        self._authorize(request)
        body = _object(call)
        if "output" not in body:
            raise Refused('"output" is missing from the chunk')
        self._store.append(request.match_info["job"], split_chunk(body["output"], self._limits.chunk_bytes))
        return Reply(document={})

    async def _ping(self, request: web.Request, call: Call) -> Reply:
        self._authorize(request)
        call.job_ids = [job_id for job_id in call.query.get("job_id", "").split(",") if job_id]
        self._store.ping(call.worker_id, call.job_ids, healthy=call.query.get("status") != "unhealthy")
        return Reply(document={})

    def _authorize(self, request: web.Request) -> None:
        if not self._is_authorized(request):
            raise Unauthorized("the API key is missing or wrong")

    def _is_authorized(self, request: web.Request) -> bool:
        return self._api_key is None or request.headers.get("Authorization") == self._api_key


def split_chunk(output: Any, limit_bytes: int) -> list[Any]:
    """Return `output` in pieces of at most `limit_bytes`; raises Refused when it is too large and no text."""
    if not isinstance(output, str):
        size_bytes = len(json.dumps(output))
        if size_bytes > limit_bytes:
            raise Refused(f"the chunk has {size_bytes} bytes, {limit_bytes} are allowed, and only text can be split")
        return [output]
    if len(output.encode("utf-8", "surrogatepass")) <= limit_bytes:
        return [output]
    step = limit_bytes // UTF8_MAX_BYTES  # characters that fit whatever they are
    return [output[start : start + step] for start in range(0, len(output), step)]


def _object(call: Call) -> dict[str, Any]:
    if not isinstance(call.body, dict):
        raise Refused("the body must be a JSON object")
    return call.body
