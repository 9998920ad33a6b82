"""One HTTP request handed through to the server, and its answer handed back as it comes."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from worker import api_error, events, routes
from worker.errors import JobError, RouteForbidden
from worker.gateway.health import RESIDENT, Health
from worker.proxy import Proxy
from worker.routes import Framing, Route
from worker.tally import Tally
from worker.thaw import Thaw

# What a load-balancing endpoint lets through.
BODY_BYTES = 30_000_000
# The figures are at the end of an answer; one larger than this has them further back and is not counted.
TAIL_BYTES = 64 * 1024
_PASSED_ON = ("Content-Type", "Retry-After")
_STREAMED = {"text/event-stream": Framing.SSE, "application/x-ndjson": Framing.NDJSON}


@dataclass
class _Answer:
    """What is known of an answer while it passes."""

    tally: Tally
    head: bytes = b""
    tail: bytes = b""
    response: web.StreamResponse | None = None


class Passage:
    """Hands requests through; create and use it inside one event loop."""

    def __init__(self, proxy: Proxy, writer: events.EventWriter, health: Health, *, allow_admin: bool) -> None:
        """Pass on to `proxy` what `routes` allows while `health` is good."""
        self._proxy = proxy
        self._events = writer
        self._health = health
        self._allow_admin = allow_admin
        self._running: set[asyncio.Task[object]] = set()
        self._thaw: Thaw | None = None

    def look_after(self, model: str, limit_s: float) -> None:
        """Have `model`, by the server's name, loaded again within `limit_s` seconds if a thaw finds it gone."""
        self._thaw = Thaw(self._proxy, self._events, model=model, limit_s=limit_s)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request with the server's answer, or with an error in the words of its API."""
        task = asyncio.current_task()
        try:
            route = self._route(request)
            body = await _body(request)
        except JobError as error:
            return refusal(error, request.path)
        if task is None or route.method == "GET":
            return await self._pass(request, route, body, "")
        self._running.add(task)
        try:
            if self._thaw is not None:
                await self._thaw.settled()
            return await self._pass(request, route, body, f"http-{uuid.uuid4().hex[:12]}")
        finally:
            self._running.discard(task)

    async def drain(self, limit_s: float) -> None:
        """Wait up to `limit_s` seconds for the requests under way, then cut off the rest."""
        if self._running:
            await asyncio.wait(self._running, timeout=limit_s)
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=1.0)

    def _route(self, request: web.Request) -> Route:
        try:
            route = routes.find(request.path, allow_admin=self._allow_admin)
        except RouteForbidden as error:
            if not routes.exists(request.path):
                error.status = 404
            raise
        if request.method != route.method:
            raise refused(405, f"{request.path} takes {route.method}, not {request.method}")
        if self._health.status != RESIDENT:
            raise refused(503, "this worker is starting or stopping", "Send the request again")
        return route

    async def _pass(self, request: web.Request, route: Route, body: bytes | None, job_id: str) -> web.StreamResponse:
        """Hand one request through. `job_id` is empty for what is no work for the model and not reported."""
        answer = _Answer(Tally())
        # Whole: a form's border is in it.
        kind = request.headers.get("Content-Type", request.content_type)
        self._write(job_id, events.JobAccepted(job_id=job_id))
        try:
            async with self._proxy.call(route.method, route.path, body, kind) as upstream:
                self._write(job_id, events.JobOpened(job_id=job_id, route=route.path, model=""))
                if not upstream.ok:
                    answer.head = await self._proxy.head(upstream)
                    error = await self._proxy.refusal(upstream.status, answer.head)
                    if error.hint:
                        # There is more to say than the server knows: which models there are, which setting it was.
                        raise error
                response = await self._hand_back(request, upstream, answer, job_id)
            self._finish(upstream, answer, job_id)
        except JobError as error:
            self._failed(job_id, error.code, error.status, error.sentence())
            if answer.response is None:
                return refusal(error, request.path)
            await _end(answer.response, error, request)
            return answer.response
        except (asyncio.CancelledError, ConnectionError):
            self._write(job_id, events.JobCancelled(job_id=job_id))
            raise
        return response

    async def _hand_back(
        self, request: web.Request, upstream: aiohttp.ClientResponse, answer: _Answer, job_id: str
    ) -> web.StreamResponse:
        headers = {name: upstream.headers[name] for name in _PASSED_ON if name in upstream.headers}
        # Proxies in between must neither keep nor gather what is meant to be read as it comes.
        headers |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = answer.response = web.StreamResponse(status=upstream.status, headers=headers)
        response.content_length = upstream.content_length
        await response.prepare(request)
        if answer.head:
            await response.write(answer.head)
            answer.tail = answer.head[-TAIL_BYTES:]
        async for data in self._proxy.pieces(upstream):
            first = not answer.tally.chunks and upstream.ok
            if first:
                self._write(job_id, events.JobTokenReceived(job_id=job_id))
            await response.write(data)
            answer.tally.chunks += 1
            answer.tally.body_bytes += len(data)
            answer.tail = (answer.tail + data)[-TAIL_BYTES:]
            if first:
                self._write(job_id, events.JobChunkPosted(job_id=job_id))
        await response.write_eof()
        return response

    def _finish(self, upstream: aiohttp.ClientResponse, answer: _Answer, job_id: str) -> None:
        text = answer.tail.decode("utf-8", "replace")
        if upstream.ok:
            answer.tally.read(text)
            self._write(job_id, events.JobFinished(job_id=job_id, **vars(answer.tally)))
        else:
            self._failed(job_id, "api_error", upstream.status, _message(text))

    def _failed(self, job_id: str, code: str, status: int, message: str) -> None:
        self._write(job_id, events.JobFailed(job_id=job_id, code=code, status=status, message=message))

    def _write(self, job_id: str, event: events.Event) -> None:
        if job_id:
            self._events.write(event)


def refused(status: int, message: str, hint: str = "") -> JobError:
    """Return an error of the gateway's own with an HTTP status."""
    error = JobError(message, hint)
    error.status = status
    return error


def refusal(error: JobError, path: str) -> web.Response:
    """Return `error` as the API of `path` writes it."""
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(error.status)
    text = api_error.text(error, path)
    return web.Response(text=text, status=error.status, headers=headers, content_type="application/json")


async def _body(request: web.Request) -> bytes | None:
    if request.method == "GET":
        return None
    try:
        if (request.content_length or 0) <= BODY_BYTES:
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        pass
    raise refused(413, f"the body is larger than {BODY_BYTES:,} bytes", "Send less")


async def _end(response: web.StreamResponse, error: JobError, request: web.Request) -> None:
    """End an answer that broke off so that its reader notices: in words where there are frames, else by a reset."""
    framing = _STREAMED.get(response.content_type)
    if framing is None:
        if request.transport is not None:
            request.transport.abort()
        return
    # What came before may have ended in the middle of a frame.
    border = "\n\n" if framing is Framing.SSE else "\n"
    await response.write(f"{border}{api_error.event(error, request.path)}".encode("utf-8", "replace"))
    await response.write_eof()


def _message(text: str) -> str:
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return text[:200]
    return str(error.get("message") if isinstance(error, dict) else error)[:200]
