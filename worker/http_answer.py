"""One answer over HTTP from the standard library: small resources, and what a status means for the next attempt."""

from __future__ import annotations

import email.utils
import functools
import http.client
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, urljoin, urlsplit

CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 30.0
# For a small resource as a whole: one that drips is never silent.
SMALL_TIMEOUT_S = 120.0
_READ_BYTES = 64 << 10
DENIED = frozenset({401, 403})
# A signature or a token in a query must not reach a log.
_QUERY = re.compile(r"\?.*")


class TransferFailed(Exception):
    """The resource cannot be had, or not like this; trying again unchanged does not help."""


class NotThere(TransferFailed):
    """There is no such resource."""


class Busy(Exception):
    """The server cannot answer now; `retry_after_s` is when it wants to be asked again, None when it does not say."""

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        """Keep what the server said."""
        super().__init__(f"HTTP {status}")
        self.retry_after_s = retry_after_s


def ask(
    url: str, headers: Mapping[str, str] | None = None, *, method: str = "GET", limit_bytes: int = 16 << 20
) -> tuple[http.client.HTTPMessage, bytes]:
    """Return headers and body of a small resource.

    Raises:
        Busy, TransferFailed: as for a Line; the latter also when it is larger than `limit_bytes`.
        OSError, http.client.HTTPException: the connection failed, or the answer takes too long.
    """
    connection = connect(url)
    try:
        with understood(url):
            connection.request(method, target(url), headers={"Accept-Encoding": "identity", **(headers or {})})
        # An answer after which the server hangs up owns the socket, and is not closed with the connection.
        with connection.getresponse() as answer:
            require_ready(answer)
            if answer.status != 200:  # noqa: PLR2004 - nothing else is an answer here
                raise refused(answer)
            return answer.headers, _body(answer, url, limit_bytes)
    finally:
        connection.close()


def _body(answer: http.client.HTTPResponse, url: str, limit_bytes: int) -> bytes:
    body, until_s = bytearray(), time.monotonic() + SMALL_TIMEOUT_S
    while part := answer.read1(_READ_BYTES):
        body += part
        if len(body) > limit_bytes:
            raise TransferFailed(f"{shown(url)} gives more than {limit_bytes:,} bytes")
        if time.monotonic() > until_s:
            raise TimeoutError(f"{shown(url)} has not come whole in {SMALL_TIMEOUT_S:g} s")
    if answer.length:
        raise http.client.IncompleteRead(bytes(body), answer.length)
    return bytes(body)


@contextmanager
def understood(url: str) -> Iterator[None]:
    """Say of a URL that cannot be asked for that it is no address, instead of how that shows."""
    try:
        yield
    except (ValueError, http.client.InvalidURL) as exc:
        raise TransferFailed(f"{shown(url)!r:.120} is no http address: {exc}") from exc


def redirected(url: str, location: str) -> str:
    """Return where an answer's Location leads from `url`; what may not stand in an address is escaped.

    Raises:
        TransferFailed: it is no address.
    """
    with understood(location):
        # Header bytes are read as Latin-1, and are UTF-8 where somebody did not escape them.
        return urljoin(url, quote(location.encode("latin-1", "replace"), safe="!#$%&'()*+,/:;=?@[]~"))


def retry_after_s(text: str | None) -> float | None:
    """Return the seconds a Retry-After header asks for, as a number or a date, or None."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def shown(url: str) -> str:
    """Return a URL without its query, which may hold a signature."""
    return _QUERY.sub("", url)


def require_ready(answer: http.client.HTTPResponse) -> None:
    """Raise Busy when the server says that it has troubles of its own."""
    if answer.status in {408, 425, 429} or answer.status >= 500:  # noqa: PLR2004 - the server's own troubles
        raise Busy(answer.status, retry_after_s(answer.headers.get("Retry-After")))


def refused(answer: http.client.HTTPResponse) -> TransferFailed:
    """Return the error for an answer that is final."""
    if answer.status in DENIED:
        text = f"access is denied (HTTP {answer.status} {answer.reason})"
        return TransferFailed(f"{text}: the token or the keys are wrong or have run out")
    if answer.status in {404, 410}:
        return NotThere(f"there is no such file (HTTP {answer.status})")
    return TransferFailed(f"the server answers HTTP {answer.status} {answer.reason}")


def target(url: str) -> str:
    """Return what a request line has of a URL."""
    parts = urlsplit(url)
    return f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"


def connect(url: str) -> http.client.HTTPConnection:
    """Return a connection for `url`, not opened yet; raise TransferFailed when it is no http address."""
    with understood(url):
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise TransferFailed(f"{shown(url)!r:.120} is no http address")
        if parts.scheme == "http":
            return _Patient(parts.hostname, parts.port, timeout=CONNECT_TIMEOUT_S)
        return _PatientTls(parts.hostname, parts.port, timeout=CONNECT_TIMEOUT_S, context=_tls())


@functools.lru_cache(1)
def _tls() -> ssl.SSLContext:
    """Return the one context: reading the system's certificates takes longer than a handshake."""
    return ssl.create_default_context()


class _Patient(http.client.HTTPConnection):
    """Connects within one limit and waits for bytes within another."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(SILENCE_TIMEOUT_S)


class _PatientTls(http.client.HTTPSConnection):
    """The same over TLS."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(SILENCE_TIMEOUT_S)
