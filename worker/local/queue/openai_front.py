"""The OpenAI route: an HTTP request becomes a job, the job's output becomes the HTTP answer."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from aiohttp import web

from worker.local.queue.job import Job, Order, State
from worker.local.queue.limits import Limits
from worker.local.queue.order import read_json
from worker.local.queue.store import JobStore
from worker.local.queue.watch import next_chunks, until_final


class OpenAIFront:
    """Routes below /openai. A client that hangs up cancels its job."""

    def __init__(self, store: JobStore, limits: Limits) -> None:
        """Serve the jobs of `store`."""
        self._store = store
        self._limits = limits

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Return the routes under `prefix`, the endpoint's URL path."""
        path = f"{prefix}/openai/{{route:v1/.+}}"
        return [web.get(path, self._get, allow_head=False), web.post(path, self._post)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        # Neither method nor query reach the worker: an empty input is all that tells a GET from a POST.
        return await self._answer(request, self._submit(request, None), is_stream=False)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await read_json(request, self._limits.runsync_bytes)
        is_stream = isinstance(body, dict) and body.get("stream") is True
        return await self._answer(request, self._submit(request, body), is_stream=is_stream)

    def _submit(self, request: web.Request, body: Any) -> Job:
        job_input = {"openai_route": f"/{request.match_info['route']}", "openai_input": body}
        limits = self._limits
        return self._store.submit(
            Order(job_input, limits.execution_timeout_s, limits.ttl_s, limits.runsync_retention_s, is_sync=True)
        )

    async def _answer(self, request: web.Request, job: Job, *, is_stream: bool) -> web.StreamResponse:
        try:
            return await (self._stream(request, job) if is_stream else self._whole(job))
        except asyncio.CancelledError:
            self._store.cancel(job.job_id)
            raise
        except ConnectionError:
            self._store.cancel(job.job_id)
            return web.Response()

    async def _whole(self, job: Job) -> web.Response:
        await until_final(self._store, job, math.inf)
        if job.state is not State.COMPLETED:
            return _failure(job)
        return web.Response(text=_text(job.first_output()), content_type="application/json")

    async def _stream(self, request: web.Request, job: Job) -> web.StreamResponse:
        chunks = await next_chunks(self._store, job, 0, math.inf)
        if not chunks and job.state is not State.COMPLETED:
            return _failure(job)
        # A failure after this point cannot change the status any more: the body just ends.
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        seen = 0
        while chunks:
            for chunk in chunks:
                await response.write(_text(chunk).encode("utf-8", "replace"))
            seen += len(chunks)
            chunks = await next_chunks(self._store, job, seen, math.inf)
        await response.write_eof()
        return response


def _text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output)


def _failure(job: Job) -> web.Response:
    return web.json_response({"id": job.job_id, "status": job.state.value, **job.result}, status=500)
