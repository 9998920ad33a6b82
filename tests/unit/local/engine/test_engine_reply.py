from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator
from datetime import datetime, timezone
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from tests.fakes.api_server import until
from worker.local.engine import reply
from worker.local.engine.reply import ApiError


async def numbers(*values: Any, closed: list[str] | None = None) -> AsyncGenerator[Any]:
    try:
        for value in values:
            if isinstance(value, Exception):
                raise value
            yield value
    finally:
        if closed is not None:
            closed.append("closed")


async def fetch(handler: Any) -> tuple[int, str, bytes]:
    application = web.Application()
    application.router.add_get("/", handler)
    async with (
        TestServer(application) as server,
        ClientSession() as session,
        session.get(server.make_url("/")) as response,
    ):
        return response.status, response.headers["Content-Type"], await response.read()


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ({"a": [1, None, True]}, b'{"a":[1,null,true]}'),
        ("<a & b>", b'"\\u003ca \\u0026 b\\u003e"'),
        ("東京 🦙", '"東京 🦙"'.encode()),
        ("\ud800", b'"?"'),
    ],
)
def test_json_is_compact_and_escaped_like_gos(value: Any, raw: bytes) -> None:
    assert reply.dumps(value) == raw


def test_escaping_does_not_change_what_is_read() -> None:
    value = {"<&>": '\\u003c <tag> & \\ " é'}
    assert json.loads(reply.dumps(value)) == value


def test_a_timestamp_has_nanoseconds_and_utc() -> None:
    at = datetime(2026, 8, 21, 18, 48, 22, 123456, tzinfo=timezone.utc)
    assert reply.timestamp(at) == "2026-08-21T18:48:22.123456000Z"


def test_an_error_is_one_field() -> None:
    response = reply.as_error(ApiError(404, "model 'x' not found"))
    assert (response.status, response.body) == (404, b'{"error":"model \'x\' not found"}')


async def test_lines_end_with_newlines_and_a_late_error_is_the_last() -> None:
    lines = reply.as_lines({"n": 0}, numbers({"n": 1}, ApiError(500, "lost"), {"n": 2}))
    assert [line async for line in lines] == [b'{"n":0}\n', b'{"n":1}\n', b'{"error":"lost"}\n']


async def test_a_stream_is_sent_as_it_comes_and_closed() -> None:
    closed: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        return await reply.as_stream(request, numbers(b"a", b"b", closed=closed), "text/plain")

    assert await fetch(handler) == (200, "text/plain", b"ab")
    assert closed == ["closed"]


async def test_an_empty_stream_is_an_empty_answer() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await reply.as_stream(request, numbers(), "text/plain")

    assert await fetch(handler) == (200, "text/plain", b"")


async def test_an_error_before_the_first_byte_can_still_be_answered() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await reply.as_stream(request, numbers(ApiError(503, "busy")), "text/plain")
        except ApiError as error:
            return reply.as_error(error)

    assert await fetch(handler) == (503, "application/json; charset=utf-8", b'{"error":"busy"}')


async def test_a_client_that_leaves_closes_the_stream_at_once() -> None:
    closed: list[str] = []
    # Held here, so that nothing but the reply itself can close it.
    endless = numbers(*itertools.repeat(b"x" * 1000, 100_000), closed=closed)

    async def handler(request: web.Request) -> web.StreamResponse:
        return await reply.as_stream(request, endless, "text/plain")

    application = web.Application()
    application.router.add_get("/", handler)
    async with TestServer(application) as server, ClientSession() as session:
        async with session.get(server.make_url("/")) as response:
            assert await response.content.readexactly(10) == b"x" * 10
        await until(lambda: closed)
