"""The half of Runpod's API that clients call: run, status, stream, cancel, retry, purge, health."""

from __future__ import annotations

import math

from aiohttp import web

from worker.local.queue.job import Job
from worker.local.queue.limits import Limits
from worker.local.queue.order import parse_ms, parse_order, read_json
from worker.local.queue.store import JobStore
from worker.local.queue.watch import until_final


class ClientSide:
    """The client's routes over the jobs of a store. Errors are raised as Refused and shaped by the caller."""

    def __init__(self, store: JobStore, limits: Limits) -> None:
        """Serve the jobs of `store`."""
        self._store = store
        self._limits = limits

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Return the routes under `prefix`, the endpoint's URL path."""
        return [
            web.post(f"{prefix}/run", self._run),
            web.post(f"{prefix}/runsync", self._runsync),
            web.get(f"{prefix}/status/{{job}}", self._status),
            web.get(f"{prefix}/stream/{{job}}", self._stream),
            web.post(f"{prefix}/cancel/{{job}}", self._cancel),
            web.post(f"{prefix}/retry/{{job}}", self._retry),
            web.post(f"{prefix}/purge-queue", self._purge),
            web.get(f"{prefix}/health", self._health),
            web.get(f"{prefix}/requests", self._requests),
        ]

    async def _run(self, request: web.Request) -> web.Response:
        body = await read_json(request, self._limits.run_bytes)
        return _brief(self._store.submit(parse_order(body, self._limits, is_sync=False)))

    async def _runsync(self, request: web.Request) -> web.Response:
        wait = request.query.get("wait")
        wait_s = self._limits.sync_wait_s
        if wait is not None:
            wait_s = parse_ms(wait, "wait", self._limits.sync_wait_range_s)
        body = await read_json(request, self._limits.runsync_bytes)
        job = self._store.submit(parse_order(body, self._limits, is_sync=True))
        await until_final(self._store, job, wait_s)
        return web.json_response(self._store.status(job))

    async def _status(self, request: web.Request) -> web.Response:
        job = self._job(request)
        if "ttl" in request.query:
            self._store.keep(job.job_id, parse_ms(request.query["ttl"], "ttl", (0.0, math.inf)))
        return web.json_response(self._store.status(job))

    async def _stream(self, request: web.Request) -> web.Response:
        job = self._job(request)
        chunks = [{"output": output} for output in job.take_stream()]
        return web.json_response({"id": job.job_id, "status": job.state.value, "stream": chunks})

    async def _cancel(self, request: web.Request) -> web.Response:
        return _brief(self._store.cancel(request.match_info["job"]))

    async def _retry(self, request: web.Request) -> web.Response:
        return _brief(self._store.retry(request.match_info["job"]))

    async def _purge(self, _request: web.Request) -> web.Response:
        return web.json_response({"removed": self._store.purge(), "status": "completed"})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response(self._store.health())

    async def _requests(self, _request: web.Request) -> web.Response:
        return web.json_response({"requests": self._store.listing()})

    def _job(self, request: web.Request) -> Job:
        return self._store.get(request.match_info["job"])


def _brief(job: Job) -> web.Response:
    return web.json_response({"id": job.job_id, "status": job.state.value})
