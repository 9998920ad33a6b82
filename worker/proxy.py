"""One request to the server, its answer streamed back frame by frame."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from worker.errors import JobError, JobTimeout, ModelNotFound, ServerLost
from worker.frames import FrameCutter
from worker.job import Request
from worker.rejection import asked_for, names_hint, rejection
from worker.routes import Framing

READ_BYTES = 64 * 1024
ERROR_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 5.0
PIECEWISE_BYTES = 1 << 20
NAMES_TIMEOUT_S = 2.0
# What the last frame of a complete stream holds; without it the server broke off.
_LAST_FRAME = {
    "/v1/chat/completions": ("[DONE]",),
    "/v1/completions": ("[DONE]",),
    "/v1/responses": ("response.completed", "response.failed", "response.incomplete", "[DONE]"),
    "/v1/messages": ("message_stop",),
}
# How a frame begins; of an answer that is one object the whole is read later.
_BEGINNINGS = {Framing.NDJSON: ("{",), Framing.SSE: ("data:", "event:", "id:", "retry:", ":"), Framing.JSON: ("",)}
_AGAIN = "Nothing is wrong with the request: send it again"


class Proxy:
    """A pool of connections to one server. Create and close it inside the event loop that runs the jobs."""

    def __init__(self, base_url: str, *, stall_timeout_s: float) -> None:
        """Prepare to talk to `base_url`; silence longer than `stall_timeout_s` fails a request."""
        self._base_url = base_url
        self._stall_timeout_s = stall_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[AsyncGenerator[str, None]]:
        """Send `request`; give an iterator over the frames of its answer. Leaving the block stops generation.

        Raises:
            ModelNotFound, ServerRejected: the server's own error, status and words kept.
            ServerLost: it cannot be reached or broke off.
            JobTimeout: it sent nothing for too long.
        """
        route = request.route
        async with self.call(route.method, route.path, request.body, request.content_type) as response:
            with _translated(self._stall_timeout_s):
                if response.status >= 400:  # noqa: PLR2004 - where HTTP errors begin
                    raise await self.refusal(response.status, await self.head(response), request.model)
            frames = self._frames(response, request)
            try:
                yield frames
            finally:
                await frames.aclose()

    @asynccontextmanager
    async def call(
        self, method: str, path: str, body: str | bytes | None, content_type: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request and give its answer, whatever its status. Leaving the block stops generation.

        Raises:
            ServerLost, JobTimeout: as for `open`.
        """
        with _translated(self._stall_timeout_s):
            response = await self._pool().request(
                method,
                f"{self._base_url}{path}",
                data=_payload(body),
                headers={"Content-Type": content_type} if body is not None else None,
            )
        # release() would first read the rest of the answer; close() drops the connection, which is how the
        # server learns that nobody is listening.
        try:
            yield response
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def pieces(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Give the bytes of an answer as they come.

        Raises:
            ServerLost, JobTimeout: as for `open`.
        """
        with _translated(self._stall_timeout_s):
            async for data in response.content.iter_any():
                yield data

    async def head(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the body of a refusal, or the first 64 KB of it.

        Raises:
            ServerLost, JobTimeout: as for `open`.
        """
        body = b""
        with _translated(self._stall_timeout_s):
            # One read would end where the network cut it.
            while len(body) < ERROR_BYTES and (data := await response.content.readany()):
                body += data
        return body

    async def refusal(self, status: int, body: bytes, asked: str = "") -> JobError:
        """Return the error that an answer with this status and body is; one for an unknown model names those there are.

        `asked` is the model's name as its sender wrote it, where that is known.
        """
        error = rejection(status, body)
        if not isinstance(error, ModelNotFound):
            return error
        try:
            timeout = aiohttp.ClientTimeout(total=NAMES_TIMEOUT_S)
            async with self._pool().get(f"{self._base_url}/api/tags", timeout=timeout) as reply:
                names = [str(model["name"]) for model in (await reply.json(content_type=None))["models"]]
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError, TypeError):
            return error
        error.hint = names_hint(asked or asked_for(error), names)
        return error

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._stall_timeout_s)
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        return self._session

    async def _frames(self, response: aiohttp.ClientResponse, request: Request) -> AsyncGenerator[str, None]:
        cutter = FrameCutter(request.framing)
        last = ""
        with _translated(self._stall_timeout_s):
            async for data in response.content.iter_any():
                for frame in cutter.feed(data):
                    last = frame
                    yield _checked(frame, request.framing)
        rest = cutter.close()
        if rest is not None:
            last = rest
            yield _checked(rest, request.framing)
        if request.stream and not _complete(last, request):
            raise ServerLost("the server broke off in the middle of the answer", _AGAIN)


class _translated:  # noqa: N801 - used as a statement, like contextlib's own
    """Turn what aiohttp raises into what a job's sender can read."""

    def __init__(self, stall_timeout_s: float) -> None:
        self._limit_s = stall_timeout_s

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        # Timeouts before connection errors: aiohttp's are both. One before the connection stands is no silence.
        if isinstance(exc, asyncio.TimeoutError) and not isinstance(exc, aiohttp.ConnectionTimeoutError):
            hint = "Ask for less, or raise WORKER_STALL_TIMEOUT_S"
            raise JobTimeout(f"the server sent nothing for {self._limit_s:g} s", hint) from exc
        if isinstance(exc, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
            raise ServerLost("the connection to the server was lost", _AGAIN) from exc
        if isinstance(exc, aiohttp.ClientError):
            raise ServerLost(f"the server's answer cannot be read ({type(exc).__name__})", _AGAIN) from exc


def _payload(body: str | bytes | None) -> bytes | io.BytesIO | None:
    """Return what to send: a large body in pieces, because one write of it would hold up every other request."""
    data = body.encode("utf-8", "replace") if isinstance(body, str) else body
    return io.BytesIO(data) if data is not None and len(data) > PIECEWISE_BYTES else data


def _checked(frame: str, framing: Framing) -> str:
    """Return the frame, or raise the error it carries in the middle of a native stream, or that it is none."""
    if not frame.lstrip().startswith(_BEGINNINGS[framing]):
        raise ServerLost("the server sent something that is no part of an answer", _AGAIN)
    if framing is Framing.NDJSON and frame.startswith('{"error"'):
        raise rejection(500, frame.encode())
    return frame


def _complete(last: str, request: Request) -> bool:
    if request.framing is Framing.SSE:
        return any(mark in last for mark in _LAST_FRAME.get(request.route.path, ()))
    try:
        value = json.loads(last)
    except ValueError:
        return False
    return isinstance(value, dict) and (value.get("done") is True or value.get("status") == "success")
