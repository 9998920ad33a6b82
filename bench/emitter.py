"""A server that costs next to nothing: Ollama's streams at a set speed, as prepared bytes. `python -m bench.emitter`.

It listens on OLLAMA_HOST. EMITTER_TOKENS_PER_S is the speed of each stream; how many tokens is the request's own
`num_predict` or `max_tokens`. What a model would say is of no interest here, so every token is the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal

TICK_S = 0.002
STAMP = {"model": "m", "created_at": "2026-01-01T00:00:00.000000000Z"}
FIGURES = {"total_duration": 1, "prompt_eval_count": 5, "prompt_eval_duration": 1, "eval_duration": 1}
OPENAI = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
MODEL = {"name": "m:latest", "model": "m:latest", "size": 1, "size_vram": 1, "context_length": 4096}
PLAIN = {
    "/api/version": {"version": "0"},
    "/api/ps": {"models": [MODEL]},
    "/api/tags": {"models": [MODEL]},
}


def piece(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(choice: dict[str, object]) -> bytes:
    """Return one server-sent event of a chat."""
    return b"data: " + json.dumps({**OPENAI, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def line(text: str, **more: object) -> bytes:
    """Return one line of a native chat."""
    value = {**STAMP, "message": {"role": "assistant", "content": text}, "done": False, **more}
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


NATIVE_TOKEN = piece(line(" token"))
OPENAI_TOKEN = piece(event({"index": 0, "delta": {"content": " token"}, "finish_reason": None}))
OPENAI_END = (
    piece(event({"index": 0, "delta": {}, "finish_reason": "stop"})) + piece(b"data: [DONE]\n\n") + b"0\r\n\r\n"
)


class Connection(asyncio.Protocol):
    """One connection: requests one after the other, each answered from memory."""

    speed = 2000.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with nothing read."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment] # it is one: this is TCP
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop sending."""
        del exc
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer a request once it is whole."""
        self._buffer += data
        head, border, rest = self._buffer.partition(b"\r\n\r\n")
        if not border:
            return
        length = next((int(h[15:]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length:")), 0)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self._answer(head.split(b" ", 2)[1].decode(), json.loads(rest[:length] or b"{}"))

    def _answer(self, path: str, body: dict[str, object]) -> None:
        if path in PLAIN:
            self._send(json.dumps(PLAIN[path]).encode())
            return
        options = body.get("options")
        limit = body.get("max_tokens") or (options.get("num_predict") if isinstance(options, dict) else 0)
        tokens = int(str(limit or 1))
        last = line("", done=True, done_reason="stop", eval_count=tokens, **FIGURES)
        if not body.get("stream"):
            self._send(last)
        elif path.startswith("/v1/"):
            self._transport.write(STREAM_HEAD % b"text/event-stream")
            self._emit(OPENAI_TOKEN, OPENAI_END, tokens, asyncio.get_running_loop().time())
        else:
            self._transport.write(STREAM_HEAD % b"application/x-ndjson")
            self._emit(NATIVE_TOKEN, piece(last) + b"0\r\n\r\n", tokens, asyncio.get_running_loop().time())

    def _send(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    def _emit(self, token: bytes, end: bytes, left: int, next_s: float) -> None:
        """Send the tokens that are due; the first one at once."""
        loop = asyncio.get_running_loop()
        due = min(left, int((loop.time() - next_s) * self.speed) + 1)
        self._transport.write(token * due + (end if due == left else b""))
        if due < left:
            again_s = next_s + due / self.speed
            self._timer = loop.call_at(max(again_s, loop.time() + TICK_S), self._emit, token, end, left - due, again_s)


async def serve(host: str, port: int) -> None:
    """Answer until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(Connection, host, port, backlog=512)
    async with server:
        await stop.wait()


if __name__ == "__main__":
    Connection.speed = float(os.environ.get("EMITTER_TOKENS_PER_S", "2000"))
    name, _, number = os.environ["OLLAMA_HOST"].rpartition(":")
    asyncio.run(serve(name, int(number)))
