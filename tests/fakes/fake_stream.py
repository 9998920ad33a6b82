"""A streamed answer, with the script's faults at their tokens."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import web
from fake_anthropic import Anthropic
from fake_model import Plan
from fake_script import Script
from fake_wire import Native, OpenAi

# Ends a frame of both kinds of stream.
GARBAGE = b"\xff\xfe<html>\n\n"


@dataclass
class Faults:
    """The script, and where to count the tokens that were sent."""

    script: Script
    counts: Counter[str]


async def send(
    request: web.Request, wire: Native | OpenAi | Anthropic, plan: Plan, faults: Faults, load_s: float
) -> web.StreamResponse:
    """Send `plan` piece by piece; ends early, or not at all, where the script says so."""
    script = faults.script
    await asyncio.sleep(script.first_token_delay_s)
    response = web.StreamResponse(headers={"Content-Type": wire.content_type})
    await response.prepare(request)
    write = _every_byte if script.split else _whole
    for index, piece in enumerate(_pieces(wire, plan)):
        if index == script.hang_at_token:
            await asyncio.Event().wait()
        if index == script.die_at_token:
            os._exit(script.exit_code)
        if index == script.drop_at_token and request.transport is not None:
            request.transport.abort()
        if index == script.error_at_token:
            await write(response, request, wire.error(script.error))
        if index in (script.error_at_token, script.close_at_token, script.drop_at_token):
            break
        if index == script.garbage_at_token:
            await write(response, request, GARBAGE)
            continue
        if index and script.tokens_per_s:
            await asyncio.sleep(1 / script.tokens_per_s)
        await write(response, request, piece)
        faults.counts["tokens"] += 1
    else:
        await write(response, request, wire.end(plan, plan.metrics(load_s)))
    return response


def _pieces(wire: Native | OpenAi | Anthropic, plan: Plan) -> Iterator[bytes]:
    for thought in plan.thoughts:
        yield wire.piece("", thought)
    for token in plan.tokens:
        yield wire.piece(token)


async def _whole(response: web.StreamResponse, _: web.Request, data: bytes) -> None:
    await response.write(data)


async def _every_byte(response: web.StreamResponse, request: web.Request, data: bytes) -> None:
    connection = request.transport.get_extra_info("socket") if request.transport else None
    if connection is not None:
        # Without this the kernel would glue the bytes together again.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in data:
        await response.write(bytes([byte]))
        await asyncio.sleep(0)
