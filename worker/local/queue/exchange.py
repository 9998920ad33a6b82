"""One call of a worker from request to answer: recorded, run through the fault script, delivered or undone."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web

from worker.local.queue.errors import HungUp, Refused
from worker.local.queue.faults import Answer, Script
from worker.local.queue.record import Call, Record


@dataclass(frozen=True)
class Reply:
    """What to answer, and what to take back when the answer cannot be delivered."""

    status: int = HTTPStatus.OK
    document: Any = None
    undo: Callable[[], None] | None = None

    def response(self) -> web.Response:
        """Return the reply as HTTP."""
        if self.status == HTTPStatus.NO_CONTENT:
            return web.Response(status=self.status)
        return web.json_response(self.document, status=self.status)


Work = Callable[[web.Request, Call], Awaitable[Reply]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Exchange:
    """Turns the queue's normal behaviour (a Work) into a handler that can also misbehave."""

    def __init__(self, record: Record) -> None:
        """Keep every call in `record`."""
        self._record = record

    def handler(self, kind: str, script: Script, work: Work) -> Handler:
        """Return the handler of all calls of `kind` (take, stop, done, stream, ping)."""

        async def handle(request: web.Request) -> web.StreamResponse:
            call = self._record.opened(_read_call(kind, request, await request.read()))
            answer = script.next()
            await asyncio.sleep(answer.delay_s)
            try:
                reply = await _reply(request, call, work) if answer.is_normal or answer.applied else Reply()
            except HungUp:
                return web.Response()
            if answer.reset:
                _reset(request)
                return web.Response()
            response = reply.response() if answer.is_normal else _scripted(answer)
            await self._deliver(request, response, call, reply)
            return response

        return handle

    async def _deliver(self, request: web.Request, response: web.Response, call: Call, reply: Reply) -> None:
        # Noted before it is sent: whoever has the answer must find it in the record.
        self._record.answered(call, response.status)
        try:
            await response.prepare(request)
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError) as error:
            self._record.answered(call, None)
            if reply.undo is not None:
                reply.undo()
            if isinstance(error, asyncio.CancelledError):
                raise


def _read_call(kind: str, request: web.Request, raw: bytes) -> Call:
    try:
        # The SDK labels its JSON as a form.
        body = json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        body = raw.decode(errors="replace")
    path = request.match_info
    return Call(
        kind,
        path["worker"],
        at_s=time.monotonic(),
        query=dict(request.query),
        headers=dict(request.headers),
        job_ids=[path["job"]] if "job" in path else [],
        body=body,
        size_bytes=len(raw),
    )


async def _reply(request: web.Request, call: Call, work: Work) -> Reply:
    try:
        return await work(request, call)
    except Refused as refusal:
        return Reply(refusal.status, {"error": str(refusal)})


def _scripted(answer: Answer) -> web.Response:
    status = answer.status or HTTPStatus.OK
    # 204 and 304 must not have a body, and aiohttp gives every text one.
    return web.Response(status=status, text=answer.body or None, content_type=answer.content_type)


def _reset(request: web.Request) -> None:
    transport = request.transport
    if transport is not None:
        # Lingering for zero seconds makes the close a TCP reset instead of an orderly end.
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
