"""Byte ranges of one HTTP resource over connections that are kept: redirects, expiry, and what can go wrong."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from worker.http_answer import DENIED, TransferFailed, connect, refused, require_ready, target

BUFFER_BYTES = 1 << 20
MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_GIVEN = frozenset({200, 206})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class RangeIgnored(TransferFailed):
    """The server answers with the whole resource when it is asked for a part."""


@dataclass
class Origin:
    """A resource of known size; `address` gives its URL, a fresh one each time where URLs expire.

    `headers` go to the address's own host only, not to where it redirects.
    """

    address: Callable[[], str]
    size_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""
    _settled: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def route(self) -> tuple[str, Mapping[str, str]]:
        """Return the URL to ask now and the headers for it: where the last redirect led, else the address."""
        with self._lock:
            if self._settled:
                return self._settled, {}
            return self.address(), self.headers

    def settle(self, url: str) -> None:
        """Ask `url` from now on: an address redirected there."""
        with self._lock:
            self._settled = url

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
        self._host = ("", "")
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

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
            while offset < end:
                count = self._read(answer, end - offset)
                write(self._buffer[:count], offset)
                offset += count
            if not answer.isclosed():
                # More than was asked for: the rest is not read, so the connection is of no use any more.
                self.close()
        except BaseException:
            self.close()
            raise

    def abort(self) -> None:
        """End a fetch that runs in another thread: its read fails at once."""
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                # Past the TLS layer, which is no business of two threads at once.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next fetch opens another one."""
        if self._response is not None:
            # It owns the socket when the server hangs up after it.
            self._response.close()
            self._response = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self, answer: http.client.HTTPResponse, limit_bytes: int) -> int:
        count = answer.readinto(self._buffer[: min(BUFFER_BYTES, limit_bytes)])
        if not count:
            raise ConnectionError(f"the connection ended {limit_bytes:,} bytes too early")
        return count

    def _answer(self, start: int, end: int) -> http.client.HTTPResponse:
        # The whole is asked for without a range, for servers that know none.
        whole = start == 0 and end == self._origin.size_bytes
        wanted = {} if whole else {"Range": f"bytes={start}-{end - 1}"}
        url, headers = self._origin.route()
        renewed = False
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._asked(url, {"Accept-Encoding": "identity", **headers, **wanted})
            if answer.status in _REDIRECTS:
                url, headers = urljoin(url, answer.headers.get("Location", "")), {}
                self._origin.settle(url)
            elif answer.status in DENIED and not renewed:
                # A signed URL runs out in the middle of a large file: once, a new one is asked for.
                renewed = True
                self._origin.unsettle(url)
                url, headers = self._origin.address(), self._origin.headers
            else:
                self._require(answer, start, end, whole=whole)
                return answer
            # Its body is of no interest.
            self.close()
        raise TransferFailed(f"more than {MAX_REDIRECTS} redirects")

    def _asked(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        host = urlsplit(url)[:2]
        if self._connection is None or self._host != host:
            self.close()
            self._connection = connect(url)
            self._host = host
        self._connection.request("GET", target(url), headers=headers)
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
