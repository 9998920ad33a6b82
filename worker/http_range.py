"""Byte ranges of one HTTP resource over connections that are kept: redirects, expiry, and what can go wrong."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from worker.http_answer import DENIED, TransferFailed, connect, redirected, refused, require_ready, target, understood

BUFFER_BYTES = 1 << 20
# What comes is counted in steps of what an answer gives in this time: a slow one must not be taken for one that gives
# nothing. Small steps for a fast one would cost as much as all else that is done with its bytes.
_STEP_S = 0.5
_LEAST_STEP_BYTES = 256 << 10
MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_GIVEN = frozenset({200, 206})
# Of an address that a redirect once gave: it has run out, and says so in one of several ways.
_RUN_OUT = DENIED | {400, 404, 410}
_CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20}|\*)")


class RangeIgnored(TransferFailed):
    """The server answers with the whole resource when it is asked for a part."""


@dataclass
class Origin:
    """A resource of known size; `address` gives its URL, a fresh one each time where URLs expire.

    `headers` go to the address's own scheme and host only, not to others it redirects to.
    """

    address: Callable[[], str]
    size_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""
    _settled: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def route(self) -> str:
        """Return the URL to ask now: where the last redirect led, else the address."""
        with self._lock:
            return self._settled or self.address()

    def headers_for(self, url: str) -> Mapping[str, str]:
        """Return the headers that `url` may be told."""
        if not self.headers or urlsplit(url)[:2] != urlsplit(self.address())[:2]:
            return {}
        return self.headers

    def settle(self, url: str) -> None:
        """Ask `url` from now on: an address redirected there."""
        with self._lock:
            self._settled = url

    def settled(self, url: str) -> bool:
        """Return whether `url` is where an address redirected."""
        return self._settled == url

    def unsettle(self, url: str) -> None:
        """Ask the address again next time, unless it is another one by now."""
        with self._lock:
            if self._settled == url:
                self._settled = ""


class Line:
    """One connection to an origin, opened when it is needed and again when it broke; for one thread."""

    def __init__(self, origin: Origin) -> None:
        """Prepare; nothing is sent yet."""
        self._origin = origin
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._socket: socket.socket | None = None
        self._url = ""
        self._host = ("", "")
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._came_bytes = 0
        self._answer_s, self._answer_bytes = time.monotonic(), 0
        self._aborted = False

    @property
    def came_bytes(self) -> int:
        """How many bytes have come so far, handed on or not."""
        return self._came_bytes

    def fetch(self, start: int, end: int, write: Callable[[memoryview, int], None]) -> None:
        """Hand the bytes [start, end) to `write` with their offset, as they come.

        Raises:
            Busy: the server wants to be asked later.
            TransferFailed: it will not do.
            OSError, http.client.HTTPException: the connection failed; what was written until then is right.
        """
        try:
            answer = self._answer(start, end)
            offset = start
            self._answer_s, self._answer_bytes = time.monotonic(), self._came_bytes
            while offset < end:
                count = self._read(answer, end - offset)
                write(self._buffer[:count], offset)
                offset += count
            if not answer.isclosed():
                # More than was asked for: the rest is not read, so the connection is of no use any more.
                self.close()
        except (OSError, http.client.HTTPException):
            # One of several places the address can redirect to may be gone, and another one not.
            self._origin.unsettle(self._url)
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def abort(self) -> None:
        """End a fetch that runs in another thread, and all later ones: they fail at once."""
        self._aborted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Past the TLS layer, which is no business of two threads at once.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next fetch opens another one."""
        if self._response is not None:
            # It owns the socket when the server hangs up after it.
            self._response.close()
            self._response = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._socket = None

    def _read(self, answer: http.client.HTTPResponse, limit_bytes: int) -> int:
        """Fill the buffer up to `limit_bytes`; return how much came before the connection ended."""
        room, filled = self._buffer[:limit_bytes], 0
        while filled < len(room):
            try:
                count = answer.readinto(room[filled : filled + self._step_bytes])
            except OSError:
                if not filled:
                    raise
                # What has come is right, and is kept; the next read finds the connection closed.
                answer.close()
                break
            if not count:
                break
            filled += count
            self._came_bytes += count
        if not filled:
            raise ConnectionError(f"the connection ended {limit_bytes:,} bytes too early")
        return filled

    @property
    def _step_bytes(self) -> int:
        came_bytes = self._came_bytes - self._answer_bytes
        # Never more than has come: bytes that were there already say little about the connection.
        passed_s = max(time.monotonic() - self._answer_s, _STEP_S)
        return max(_LEAST_STEP_BYTES, int(came_bytes / passed_s * _STEP_S))

    def _answer(self, start: int, end: int) -> http.client.HTTPResponse:
        # The whole is asked for without a range, for servers that know none.
        whole = start == 0 and end == self._origin.size_bytes
        wanted = {} if whole else {"Range": f"bytes={start}-{end - 1}"}
        url = self._origin.route()
        renewed = False
        for _ in range(MAX_REDIRECTS + 1):
            headers = self._origin.headers_for(url)
            answer = self._asked(url, {"Accept-Encoding": "identity", **headers, **wanted})
            if answer.status in _REDIRECTS:
                url = redirected(url, answer.headers.get("Location", ""))
                self._origin.settle(url)
            elif not renewed and answer.status in (_RUN_OUT if self._origin.settled(url) else DENIED):
                # A signed URL runs out in the middle of a large file: once, a new one is asked for.
                renewed = True
                self._origin.unsettle(url)
                url = self._origin.address()
            else:
                self._require(answer, start, end, whole=whole)
                return answer
            # Its body is of no interest.
            self.close()
        raise TransferFailed(f"more than {MAX_REDIRECTS} redirects")

    def _asked(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        with understood(url):
            host = urlsplit(url)[:2]
            if self._connection is None or self._host != host:
                self.close()
                self._connection = connect(url)
                self._host = host
            self._url = url
            self._connection.request("GET", target(url), headers=headers)
        # The answer takes the socket away from its connection when the server is to hang up after it.
        self._socket = self._connection.sock
        if self._aborted:
            # Between two looks at the flag and the socket nobody can be missed.
            raise ConnectionAbortedError("the transfer has ended")
        self._response = self._connection.getresponse()
        return self._response

    def _require(self, answer: http.client.HTTPResponse, start: int, end: int, *, whole: bool) -> None:
        """Raise unless the answer is the bytes asked for."""
        status = answer.status
        require_ready(answer)
        etag = answer.headers.get("ETag", "")
        if status in _GIVEN and self._origin.etag and etag and etag.strip('"') != self._origin.etag.strip('"'):
            raise TransferFailed("the file was replaced while it was read")
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if status == 206 and found:  # noqa: PLR2004 - partial content
            total = found[3]
            if (int(found[1]), int(found[2])) != (start, end - 1):
                raise TransferFailed(f"asked for bytes {start}-{end - 1}, got {found[1]}-{found[2]}")
            self._require_size(int(total) if total != "*" else None)
        elif status == 200:  # noqa: PLR2004 - all of it
            self._require_size(answer.length)
            if not whole:
                raise RangeIgnored("the server does not give parts of files")
        else:
            raise refused(answer)

    def _require_size(self, size_bytes: int | None) -> None:
        if size_bytes is not None and size_bytes != self._origin.size_bytes:
            raise TransferFailed(f"the file has {size_bytes:,} bytes and not {self._origin.size_bytes:,}")
