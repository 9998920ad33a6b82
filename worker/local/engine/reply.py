"""How answers leave the engine: errors with their status, one JSON object, or a stream of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timezone
from typing import Any

from aiohttp import web

JSON_TYPE = "application/json; charset=utf-8"
NDJSON_TYPE = "application/x-ndjson"
SSE_TYPE = "text/event-stream"
CLIENT_CLOSED = 499


class ApiError(Exception):
    """A request ends with `status` and `message`: as the answer, or as a stream's last line once it has begun."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the HTTP status and the text the client reads."""
        super().__init__(message)
        self.status = status
        self.message = message


def dumps(value: Any) -> bytes:
    """Return compact JSON with the three characters escaped that Go escapes, and no others beyond ASCII."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace")


def timestamp(at: datetime | None = None) -> str:
    """Return a time as RFC 3339 in UTC with nanoseconds."""
    return (at or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def as_json(value: Any, status: int = 200, content_type: str = JSON_TYPE) -> web.Response:
    """Return one JSON answer."""
    return web.Response(body=dumps(value), status=status, headers={"Content-Type": content_type})


def as_error(error: ApiError) -> web.Response:
    """Return Ollama's own error body."""
    return as_json({"error": error.message}, error.status)


async def as_stream(request: web.Request, chunks: AsyncGenerator[bytes], content_type: str) -> web.StreamResponse:
    """Send `chunks` as they come; an ApiError before the first one propagates while its status can still be sent."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    # Closing the generator is what frees the slot when the client is gone; that it is gone is no error of ours.
    with contextlib.suppress(ConnectionResetError):
        async with aclosing(chunks):
            async for chunk in chunks:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(chunk)
    return response


async def as_lines(first: dict[str, Any], rest: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Turn answers into NDJSON lines; an error among the later ones becomes the last line."""
    yield dumps(first) + b"\n"
    try:
        async for piece in rest:
            yield dumps(piece) + b"\n"
    except ApiError as error:
        yield dumps({"error": error.message}) + b"\n"
