"""A file server on loopback that knows byte ranges, counts what it sends, and fails on demand."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

BLOCK_BYTES = 16 << 10
# Small, so that what a killed client never read was not counted as sent to it.
SEND_BUFFER_BYTES = 32 << 10


@dataclass(frozen=True)
class Request:
    """What was asked: method, path with query, headers in lower case, and the range (end exclusive) if any."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    span: tuple[int, int] | None


@dataclass(frozen=True)
class Answer:
    """A status with a body; a 200 with `ranges` becomes a 206 when a range was asked for."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    ranges: bool = False


@dataclass(frozen=True)
class Fault:
    """How one answer goes wrong. Bytes are counted from the start of its body."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_at: int | None = None  # the connection ends cleanly after so many bytes
    reset_at: int | None = None  # the connection is reset after so many bytes
    flip_at: int | None = None  # one byte is wrong
    stall_at: int | None = None  # nothing comes any more until the server is closed
    whole: bool = False  # the range is ignored
    total: int | None = None  # another length is claimed
    rate_bytes_per_s: float | None = None


App = Callable[[Request], Answer]
Serve = Callable[..., "RangeServer"]
Faults = Callable[[Request], Fault | None]


class RangeServer:
    """Serves what `app` answers, with the faults that `faults` names; a list of faults is used up in order."""

    def __init__(self, app: App, *, faults: Faults | list[Fault] | None = None, rate_bytes_per_s: float = 0.0) -> None:
        self.app = app
        self.faults = faults if faults is not None else []
        self.rate_bytes_per_s = rate_bytes_per_s
        self.requests: list[Request] = []
        self.sent_bytes = 0
        # Once so many bytes were sent nothing more is, until `resumed` is set.
        self.pause_at: int | None = None
        self.resumed = threading.Event()
        self.lock = threading.Lock()
        self.over = threading.Event()
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def fault(self, request: Request) -> Fault | None:
        if callable(self.faults):
            return self.faults(request)
        with self.lock:
            return self.faults.pop(0) if self.faults else None

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path.partition("?")[0] == path]


@contextlib.contextmanager
def starting(usual: App) -> Iterator[Serve]:
    """Give what starts servers, of `usual` unless another app is named; they end with the context."""
    with contextlib.ExitStack() as stack:

        def start(app: App | None = None, **options: Any) -> RangeServer:
            return stack.enter_context(RangeServer(app or usual, **options))

        yield start


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    owner: RangeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        super().setup()

    def log_message(self, *_: Any) -> None:
        """The tests look at `requests`."""

    def do_GET(self) -> None:
        owner = self.server.owner
        with owner.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
            span = (int(found[1]), int(found[2]) + 1) if found else None
            request = Request(len(owner.requests), self.command, self.path, headers, span)
            owner.requests.append(request)
        fault = owner.fault(request) or Fault()
        answer = owner.app(request) if fault.status is None else Answer(fault.status, headers=fault.headers)
        with contextlib.suppress(OSError):
            self._answer(request, answer, fault)

    do_HEAD = do_GET  # noqa: N815 - the base class calls it so

    def _answer(self, request: Request, answer: Answer, fault: Fault) -> None:
        body, status, headers = answer.body, answer.status, dict(answer.headers)
        if answer.ranges and request.span and not fault.whole:
            start, end = request.span
            status, body = 206, body[start:end]
            total = fault.total or len(answer.body)
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{total}"
            headers["Content-Length"] = str(len(body))
        self.send_response(status)
        headers.setdefault("Content-Length", str(fault.total or len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if request.method != "HEAD":
            self._send(body, fault)

    def _send(self, body: bytes, fault: Fault) -> None:
        owner = self.server.owner
        if fault.flip_at is not None:
            body = body[: fault.flip_at] + bytes([body[fault.flip_at] ^ 255]) + body[fault.flip_at + 1 :]
        ends = [at for at in (fault.cut_at, fault.reset_at, fault.stall_at) if at is not None]
        end = min([len(body), *ends])
        rate = fault.rate_bytes_per_s or owner.rate_bytes_per_s
        began_s = time.monotonic()
        for at in range(0, end, BLOCK_BYTES):
            block = body[at : min(at + BLOCK_BYTES, end)]
            if owner.pause_at is not None and owner.sent_bytes >= owner.pause_at:
                owner.resumed.wait(60.0)
            # Counted first: the client may have the last block, and its test may look, before this thread goes on.
            with owner.lock:
                owner.sent_bytes += len(block)
            self.wfile.write(block)
            if rate:
                owner.over.wait(max(0.0, began_s + (at + len(block)) / rate - time.monotonic()))
        if fault.stall_at is not None:
            owner.over.wait(60.0)
        if fault.reset_at is not None:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if ends or fault.total:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.request.close()


def serving(files: Mapping[str, bytes]) -> App:
    """Return an app that has `files` by path."""

    def app(request: Request) -> Answer:
        body = files.get(request.path.partition("?")[0])
        if body is None:
            return Answer(404)
        return Answer(body=body, headers={"ETag": f'"{len(body)}-{body[:8].hex()}"'}, ranges=True)

    return app
