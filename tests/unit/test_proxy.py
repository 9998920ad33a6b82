from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from worker import job
from worker.errors import JobError, JobTimeout, ModelNotFound, ServerLost, ServerRejected
from worker.job import Request
from worker.proxy import Proxy

LIMIT_S = 30.0
STALL_S = 0.3
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DELTA = b'{"model":"m","message":{"role":"assistant","content":"Hi"},"done":false}\n'
DONE = b'{"model":"m","message":{"role":"assistant","content":""},"done":true}\n'
SSE = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'


def request(path: str = "/api/chat", *, stream: bool = True, **body: Any) -> Request:
    asked = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, **body}
    return job.parse({"route": path, "body": None if path.endswith("models") else asked}, default_model="m")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(data: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


class Peer:
    """One connection of the proxy, played by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read_request(self) -> tuple[str, str]:
        """Return head and body of the next request; raise IncompleteReadError at the end of the connection."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [line for line in head.splitlines() if line.lower().startswith("content-length:")]
        size = int(lengths[0].split(":")[1]) if lengths else 0
        return head, (await self._reader.readexactly(size)).decode()

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            # Separate segments: the proxy must see each part on its own.
            await asyncio.sleep(0.01)

    async def until_gone(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def reset(self) -> None:
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Play = Callable[[Peer], Awaitable[None]]


class Misbehaving:
    """A server on loopback that answers as `play` says; it counts connections and keeps requests."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.url = ""
        self.connections = 0
        self.requests: list[tuple[str, str]] = []
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Misbehaving]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self
        if self._serving:
            await asyncio.wait(self._serving, timeout=LIMIT_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.current_task())
        self.connections += 1
        peer = Peer(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.requests.append(await peer.read_request())
                self.asked.set()
                await self._play(peer)
                if writer.is_closing():
                    break
        self.gone.set()
        await peer.close()


@contextlib.asynccontextmanager
async def talking(play: Play, *, stall_s: float = LIMIT_S) -> AsyncIterator[tuple[Proxy, Misbehaving]]:
    async with Misbehaving(play).running() as server:
        proxy = Proxy(server.url, stall_timeout_s=stall_s)
        try:
            yield proxy, server
        finally:
            await proxy.close()


async def read(proxy: Proxy, asked: Request, frames: list[str] | None = None) -> list[str]:
    """Return the frames of an answer; those before an error are in `frames` too."""
    frames = [] if frames is None else frames
    async with proxy.open(asked) as answer:
        async for frame in answer:
            frames.append(frame)
    return frames


def sending(*parts: bytes, then: str = "") -> Play:
    """Answer with `parts`, and then wait, close or reset the connection, or keep it open for the next request."""

    async def play(peer: Peer) -> None:
        await peer.send(*parts)
        if then == "wait":
            await peer.until_gone()
        elif then == "reset":
            peer.reset()
        elif then == "close":
            await peer.close()

    return play


async def failure(play: Play, asked: Request, *, stall_s: float = LIMIT_S) -> tuple[JobError, list[str]]:
    """Return the error that reading the answer raises, and the frames that came before it."""
    frames: list[str] = []
    async with talking(play, stall_s=stall_s) as (proxy, _):
        with pytest.raises(JobError) as caught:
            await read(proxy, asked, frames)
    return caught.value, frames


async def test_a_native_stream_comes_frame_by_frame() -> None:
    async with talking(sending(HEAD, chunk(DELTA), chunk(DELTA + DONE), END)) as (proxy, _):
        assert await read(proxy, request()) == [line.decode().rstrip() for line in (DELTA, DELTA, DONE)]


async def test_frames_are_cut_where_the_server_ended_them_and_not_where_the_network_did() -> None:
    text = DELTA.replace(b"Hi", "é漢🙂".encode()) + DONE
    pieces = [chunk(text[at : at + 1]) for at in range(len(text))]
    async with talking(sending(HEAD, b"".join(pieces[:40]), *pieces[40:70], b"".join(pieces[70:]), END)) as (proxy, _):
        frames = await read(proxy, request())
    assert [json.loads(frame)["message"]["content"] for frame in frames] == ["é漢🙂", ""]


async def test_an_event_stream_keeps_its_blank_lines() -> None:
    async with talking(sending(HEAD, chunk(SSE), chunk(b"data: [DONE]\n\n"), END)) as (proxy, _):
        assert await read(proxy, request("/v1/chat/completions")) == [SSE.decode(), "data: [DONE]\n\n"]


async def test_an_answer_that_is_no_stream_is_one_frame() -> None:
    async with talking(sending(whole(DONE))) as (proxy, _):
        assert await read(proxy, request(stream=False)) == [DONE.decode()]


async def test_the_request_arrives_as_it_was_parsed() -> None:
    asked = request(stream=False, keep_alive="5m")
    async with talking(sending(whole(DONE))) as (proxy, server):
        await read(proxy, asked)
        await read(proxy, request("/v1/models"))
    (posted, body), (got, nothing) = server.requests
    assert posted.startswith("POST /api/chat HTTP/1.1\r\n")
    assert "Content-Type: application/json\r\n" in posted
    assert body == asked.body
    assert got.startswith("GET /v1/models HTTP/1.1\r\n")
    assert nothing == ""


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        ("404 Not Found", b"404 page not found", ServerRejected, "this server does not have the route"),
        (
            "500 Internal Server Error",
            b'{"error":"{\\"error\\":{\\"code\\":400,\\"message\\":\\"the runner said no\\"}}"}',
            ServerRejected,
            "the runner said no",
        ),
        ("404 Not Found", b'{"error":"model \'x\' not found"}', ModelNotFound, "model 'x' not found"),
        ("404 Not Found", b"404 page not there", ServerRejected, "404 page not there"),
        ("400 Bad Request", b'{"error":{"message":"no","type":"invalid_request_error"}}', ServerRejected, "no"),
        ("400 Bad Request", b'{"type":"error","error":{"type":"t","message":"bad"}}', ServerRejected, "bad"),
        ("503 Busy", b'{"error":"server busy"}', ServerRejected, "server busy"),
        ("500 Oops", b"", ServerRejected, "the server answered HTTP 500"),
        ("500 Oops", b'{"error":" "}', ServerRejected, "the server answered HTTP 500"),
        ("500 Oops", b'{"error":{"code":1}}', ServerRejected, '{"error":{"code":1}}'),
        ("502 Bad", b"[1, 2]", ServerRejected, "[1, 2]"),
        ("500 Oops", b"\xff\xfe", ServerRejected, "\ufffd\ufffd"),
        ("500 Oops", b"x" * 300_000, ServerRejected, "x" * 500),
    ],
)
async def test_an_error_keeps_the_servers_status_and_words(
    status: str, body: bytes, kind: type[JobError], message: str
) -> None:
    error, frames = await failure(sending(whole(body, status)), request())
    assert type(error) is kind
    assert (error.status, error.message, error.retryable) == (int(status[:3]), message, False)
    assert frames == []


async def test_an_error_that_comes_in_pieces_is_read_to_its_end() -> None:
    answer = whole(json.dumps({"error": "the prompt is " + "very " * 200 + "long"}).encode(), "400 Bad Request")
    error, _ = await failure(sending(answer[:60], answer[60:200], answer[200:]), request())
    assert error.message.startswith("the prompt is very")
    assert error.message.endswith("long")


async def test_an_error_in_the_middle_of_a_native_stream_is_the_jobs_error() -> None:
    error, frames = await failure(sending(HEAD, chunk(DELTA), chunk(b'{"error":"out of memory"}\n'), END), request())
    assert isinstance(error, ServerRejected)
    assert (error.status, error.message) == (500, "out of memory")
    assert len(frames) == 1


@pytest.mark.parametrize(
    ("path", "good"), [("/api/chat", DELTA), ("/v1/chat/completions", SSE)], ids=["native", "openai"]
)
@pytest.mark.parametrize("junk", [b"<html>502</html>", b"\xff\xfe\x00", b"null", b"Traceback (most recent call last):"])
async def test_what_is_no_frame_is_not_passed_on(path: str, good: bytes, junk: bytes) -> None:
    error, frames = await failure(sending(HEAD, chunk(good), chunk(junk + b"\n\n"), END), request(path))
    assert isinstance(error, ServerLost)
    assert error.message == "the server sent something that is no part of an answer"
    assert [frame.strip() for frame in frames] == [good.decode().strip()]


BROKEN = {
    "closed-before-the-head": sending(then="close"),
    "reset-before-the-head": sending(then="reset"),
    "half-a-head": sending(b"HTTP/1.1 200 OK\r\nContent-", then="close"),
    "no-http": sending(b"SSH-2.0-OpenSSH_9.6\r\n", then="close"),
    "nothing-in-it": sending(HEAD, END),
    "closed-in-the-middle": sending(HEAD, chunk(DELTA), then="close"),
    "reset-in-the-middle": sending(HEAD, chunk(DELTA), then="reset"),
    "half-a-frame": sending(HEAD, chunk(DELTA), chunk(DONE[:30]), END),
    "no-last-frame": sending(HEAD, chunk(DELTA), END),
    "too-short": sending(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + DELTA, then="close"),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_server_that_breaks_off_is_lost_and_the_job_may_be_sent_again(how: str) -> None:
    error, frames = await failure(BROKEN[how], request())
    assert isinstance(error, ServerLost), error
    assert error.sentence().endswith("Nothing is wrong with the request: send it again")
    assert error.retryable
    assert [json.loads(frame)["done"] for frame in frames[:1]] in ([], [False])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_an_event_stream_without_its_last_event_has_broken_off(path: str) -> None:
    error, frames = await failure(sending(HEAD, chunk(SSE), END), request(path))
    assert isinstance(error, ServerLost)
    assert frames == [SSE.decode()]


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/completions", b"data: [DONE]\n\n"),
        ("/v1/responses", b'event: response.completed\ndata: {"type":"response.completed"}\n\n'),
        ("/v1/messages", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    ],
)
async def test_every_event_stream_is_known_by_its_own_last_event(path: str, last: bytes) -> None:
    async with talking(sending(HEAD, chunk(SSE), chunk(last), END)) as (proxy, _):
        assert await read(proxy, request(path)) == [SSE.decode(), last.decode()]


async def test_a_server_nobody_listens_for_is_lost() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        proxy = Proxy(f"http://127.0.0.1:{taken.getsockname()[1]}", stall_timeout_s=LIMIT_S)
        with pytest.raises(ServerLost, match="the connection to the server was lost"):
            await read(proxy, request())
        await proxy.close()


async def test_a_server_that_does_not_accept_is_lost_and_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.proxy.CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)  # noqa: FBT003 - the standard library's signature
            caller.connect_ex(full.getsockname())
        proxy = Proxy(f"http://127.0.0.1:{full.getsockname()[1]}", stall_timeout_s=LIMIT_S)
        with pytest.raises(ServerLost, match="the connection to the server was lost"):
            await read(proxy, request())
        await proxy.close()


@pytest.mark.parametrize("parts", [(), (HEAD,), (HEAD, chunk(DELTA))], ids=["silent", "head-only", "one-frame"])
async def test_silence_fails_the_job_at_the_limit(parts: tuple[bytes, ...]) -> None:
    error, frames = await failure(sending(*parts, then="wait"), request(), stall_s=STALL_S)
    assert isinstance(error, JobTimeout)
    assert error.sentence() == "the server sent nothing for 0.3 s. Ask for less, or raise WORKER_STALL_TIMEOUT_S"
    assert error.retryable
    assert len(frames) == max(0, len(parts) - 1)


async def test_a_slow_reader_is_no_silence_of_the_server() -> None:
    async with (
        talking(sending(HEAD, chunk(DELTA), chunk(DONE), END), stall_s=STALL_S) as (proxy, _),
        proxy.open(request()) as frames,
    ):
        count = 0
        async for _ in frames:
            await asyncio.sleep(2 * STALL_S)
            count += 1
    assert count == 2


async def test_leaving_the_answer_hangs_up() -> None:
    async with talking(sending(HEAD, chunk(DELTA), then="wait")) as (proxy, server):
        async with proxy.open(request()) as frames:
            await anext(frames)
            assert not server.gone.is_set()
        await asyncio.wait_for(server.gone.wait(), LIMIT_S)


async def test_giving_up_while_the_prompt_is_read_hangs_up() -> None:
    async with talking(sending(then="wait")) as (proxy, server):
        asking = asyncio.create_task(read(proxy, request()))
        await asyncio.wait_for(server.asked.wait(), LIMIT_S)
        asking.cancel()
        await asyncio.wait_for(server.gone.wait(), LIMIT_S)
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_connections_are_used_again_unless_an_answer_was_left() -> None:
    async with talking(sending(HEAD, chunk(DELTA), chunk(DONE), END)) as (proxy, server):
        for _ in range(3):
            await read(proxy, request())
        assert server.connections == 1
        async with proxy.open(request()) as frames:
            await anext(frames)
        await read(proxy, request())
        assert server.connections == 2


async def test_after_an_error_the_next_request_is_answered() -> None:
    answers = iter([sending(whole(b'{"error":"no"}', "500 Oops")), sending(whole(DONE))])

    async def play(peer: Peer) -> None:
        await next(answers)(peer)

    async with talking(play) as (proxy, _):
        with pytest.raises(ServerRejected):
            await read(proxy, request(stream=False))
        assert await read(proxy, request(stream=False)) == [DONE.decode()]


async def test_no_limit_of_connections_holds_jobs_back() -> None:
    everybody = asyncio.Event()
    count = 120

    async def play(peer: Peer) -> None:
        if len(server.requests) == count:
            everybody.set()
        await everybody.wait()
        await peer.send(whole(DONE))

    async with talking(play) as (proxy, server):
        answers = await asyncio.gather(*[read(proxy, request(stream=False)) for _ in range(count)])
    assert answers == [[DONE.decode()]] * count


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with talking(sending(whole(DONE))) as (proxy, _):
        assert await read(proxy, request(stream=False)) == [DONE.decode()]


async def test_it_can_be_closed_twice_and_before_it_was_used() -> None:
    async with talking(sending(whole(DONE))) as (proxy, _):
        await proxy.close()
        await read(proxy, request(stream=False))
        await proxy.close()
        await proxy.close()


# --- What is said about a model that is not there

GONE = whole(b'{"error":"model \'smollm2:136m\' not found"}', "404 Not Found")


@pytest.mark.parametrize(
    ("tags", "hint"),
    [
        (whole(b'{"models":[{"name":"smollm2:135m"},{"name":"qwen3:8b"}]}'), "Did you mean smollm2:135m?"),
        (whole(b'{"models":[{"name":"smollm2:latest"}]}'), "Did you mean smollm2:latest?"),
        (whole(b'{"models":[{"name":"qwen3:8b"},{"name":"b"}]}'), "This worker has qwen3:8b, b"),
        (whole(b'{"models":[%s]}' % b",".join([b'{"name":"z"}'] * 9)), "This worker has z, z, z, z, z, …"),
        (whole(b'{"models":[]}'), "This worker has no model yet"),
        (whole(b'{"models":null}'), "Ask for a model the worker has"),
        (whole(b"[]"), "Ask for a model the worker has"),
        (whole(b"<html>", "500 Oops"), "Ask for a model the worker has"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "Ask for a model the worker has"),
    ],
)
async def test_an_unknown_model_is_answered_with_the_nearest_names(tags: bytes, hint: str) -> None:
    async def play(peer: Peer) -> None:
        peers.append(peer)
        await peer.send(GONE if len(peers) == 1 else tags)
        if len(peers) > 1:
            await peer.close()

    peers: list[Peer] = []
    error, frames = await failure(play, request(model="smollm2:136m"))
    assert isinstance(error, ModelNotFound)
    assert (error.message, frames) == ("model 'smollm2:136m' not found", [])
    assert error.hint.startswith(hint)


async def test_a_form_is_sent_with_its_own_type() -> None:
    asked = {"openai_route": "/v1/audio/transcriptions", "openai_input": {"file": "aGk="}}
    async with talking(sending(whole(b'{"text":"hi"}'))) as (proxy, server):
        assert await read(proxy, job.parse(asked, default_model="m")) == ['{"text":"hi"}']
    ((head, body),) = server.requests
    boundary = head.partition("multipart/form-data; boundary=")[2].partition("\r")[0]
    assert body.endswith(f"--{boundary}--\r\n")
    assert 'name="model"\r\n\r\nm\r\n' in body
