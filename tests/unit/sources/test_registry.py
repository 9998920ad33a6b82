from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from worker.sources import registry
from worker.sources.registry import Miss, Progress, pull

LIMIT_S = 30.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
SUCCESS = {"status": "success"}
DIGEST = "sha256:aa"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def line(record: Any) -> bytes:
    return chunk(json.dumps(record).encode() + b"\n")


def layer(completed: int | None, total: int, digest: str = DIGEST) -> dict[str, Any]:
    done = {} if completed is None else {"completed": completed}
    return {"status": f"pulling {digest}", "digest": digest, "total": total, **done}


class Puller:
    """A server that plays one answer to one pull, and remembers what it was asked and how the client left."""

    def __init__(self, play: Callable[[socket.socket], None]) -> None:
        self._play = play
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.head = ""
        self.body: Any = None
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        # Wakes up an accept() that nobody called.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(LIMIT_S)
                self._read(connection)
                # The client may leave at any point.
                with contextlib.suppress(OSError):
                    self._play(connection)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                self.left.set()

    def _read(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            lines = [text.decode() for text in itertools.takewhile(lambda text: text != b"\r\n", stream)]
            self.head = "".join(lines)
            sizes = [text.partition(":")[2] for text in lines if text.lower().startswith("content-length")]
            self.body = json.loads(stream.read(int(sizes[0])))


Serve = Callable[..., Puller]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answer one pull with `parts`, or as `play` does it."""
    with contextlib.ExitStack() as stack:

        def _serve(*parts: bytes, play: Callable[[socket.socket], None] | None = None) -> Puller:
            puller = Puller(play or (lambda connection: connection.sendall(b"".join(parts))))
            stack.callback(puller.close)
            return puller

        yield _serve


def pulled(puller: Puller, *, limit_s: float = LIMIT_S, model: str = "m") -> tuple[Miss | None, list[Progress]]:
    reports: list[Progress] = []
    return pull(puller.url, model, limit_s=limit_s, report=reports.append), reports


@pytest.fixture
def every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PROGRESS_INTERVAL_S", 0.0)


def test_a_pull_that_succeeds_is_no_miss(serve: Serve) -> None:
    puller = serve(HEAD, line({"status": "pulling manifest"}), line(layer(5, 9)), line(SUCCESS), END)
    assert pulled(puller, model="hf.co/org/repo:Q4_K_M") == (None, [])
    assert puller.head.startswith("POST /api/pull HTTP/1.1\r\n")
    assert puller.body == {"model": "hf.co/org/repo:Q4_K_M"}


@pytest.mark.usefixtures("every_report")
def test_progress_is_summed_over_layers(serve: Serve) -> None:
    records = [layer(None, 100), layer(10, 100), layer(4, 50, "sha256:bb"), {"status": "verifying"}, layer(100, 100)]
    miss, reports = pulled(serve(HEAD, *map(line, records), line(SUCCESS), END))
    assert miss is None
    assert [(report.done_bytes, report.total_bytes) for report in reports] == [
        (0, 100),
        (10, 100),
        (14, 150),
        (104, 150),
    ]
    assert reports[0].rate_bytes_per_s == 0
    assert reports[-1].rate_bytes_per_s > 0


def test_progress_comes_at_most_once_an_interval(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PROGRESS_INTERVAL_S", 0.1)

    def trickle(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for number in range(40):
            connection.sendall(line(layer(number, 40)))
            time.sleep(0.01)
        connection.sendall(line(SUCCESS) + END)

    reports: list[tuple[float, Progress]] = []

    def report(progress: Progress) -> None:
        reports.append((time.monotonic(), progress))

    started = time.monotonic()
    assert pull(serve(play=trickle).url, "m", limit_s=LIMIT_S, report=report) is None
    assert reports
    times = [started, *(at for at, _ in reports)]
    assert all(later - earlier > 0.09 for earlier, later in itertools.pairwise(times))
    # The rate is over the time of the pull, which began after `started`.
    assert all(progress.rate_bytes_per_s * (at - started) >= progress.done_bytes for at, progress in reports)
    assert all(progress.rate_bytes_per_s * 0.09 <= progress.done_bytes for _, progress in reports)


@pytest.mark.parametrize(
    ("done", "total", "rate", "eta_s"), [(0, 100, 0.0, None), (50, 150, 25.0, 4.0), (100, 100, 10.0, 0.0)]
)
def test_the_time_left_follows_from_the_rate(done: int, total: int, rate: float, eta_s: float | None) -> None:
    progress = Progress(done, total, rate)
    assert progress.eta_s == eta_s
    assert progress.fields() == {
        "done_bytes": done,
        "total_bytes": total,
        "rate_bytes_per_s": rate,
        "eta_s": eta_s,
    }


def test_figures_are_rounded_for_a_reader() -> None:
    fields = Progress(1, 1000, 3.14159).fields()
    assert (fields["rate_bytes_per_s"], fields["eta_s"]) == (3, 318.0)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([line({"error": "pull model manifest: file does not exist"})], "pull model manifest: file does not exist"),
        ([line(layer(1, 2)), line({"error": "max retries exceeded: EOF"}), line(SUCCESS)], "max retries exceeded: EOF"),
        ([line({"status": "pulling manifest"})], "the pull ended without saying that it succeeded"),
        ([], "the pull ended without saying that it succeeded"),
        ([chunk(b"<html>gateway</html>\n")], "unreadable answer: b'<html>gateway</html>'"),
        ([line(["success"])], "unexpected answer: ['success']"),
        ([chunk(b"x" * 5000 + b"\n")], f"unreadable answer: {b'x' * 120!r}"),
    ],
)
def test_why_there_are_no_weights_is_said(serve: Serve, parts: list[bytes], reason: str) -> None:
    assert pulled(serve(HEAD, *parts, END)) == (Miss("registry", reason), [])


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        ("404 Not Found", b'{"error":"model not found"}', "model not found"),
        ("500 Internal Server Error", b'{"error":"no space left on device"}', "no space left on device"),
        ("502 Bad Gateway", b"no", "unreadable answer: b'no'"),
        ("400 Bad Request", b"", "the pull ended without saying that it succeeded"),
    ],
)
def test_a_refusal_before_the_pull_is_a_miss(serve: Serve, status: str, body: bytes, reason: str) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert pulled(serve(head, body))[0] == Miss("registry", reason)


def test_lines_are_read_as_they_come_however_they_are_split(serve: Serve) -> None:
    text = b"".join(json.dumps(record).encode() + b"\n" for record in [layer(1, 2), {"status": "é"}, SUCCESS])
    parts = [chunk(text[at : at + 1]) for at in range(len(text))]
    assert pulled(serve(HEAD, *parts, END))[0] is None


def test_success_counts_at_once_though_the_connection_stays_open(serve: Serve) -> None:
    over = threading.Event()

    def linger(connection: socket.socket) -> None:
        connection.sendall(HEAD + line(SUCCESS))
        over.wait(LIMIT_S)

    puller = serve(play=linger)
    assert pulled(puller)[0] is None
    over.set()


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + line(layer(1, 9)), HEAD + b"5\r\nhal"])
def test_silence_is_told_from_a_broken_connection(serve: Serve, sent: bytes) -> None:
    over = threading.Event()

    def hang(connection: socket.socket) -> None:
        connection.sendall(sent)
        over.wait(LIMIT_S)

    puller = serve(play=hang)
    try:
        assert pulled(puller, limit_s=0.3)[0] == Miss("registry", "no progress for 0.3 s")
    finally:
        over.set()


@pytest.mark.parametrize("sent", [b"", HEAD + line(layer(1, 9)), HEAD + b"50\r\nhalf"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_server_that_goes_away_is_a_miss(serve: Serve, sent: bytes, *, reset: bool) -> None:
    def drop(connection: socket.socket) -> None:
        connection.sendall(sent)
        if reset:
            # A close that discards and resets, as of a process that was killed.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    miss = pulled(serve(play=drop))[0]
    assert miss is not None
    assert miss.reason.startswith("the server dropped the pull (")


def test_no_server_is_a_miss() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    told = {
        url: "Connection refused",
        "127.0.0.1:99999": "that is no http address",
        "http://": "that is no http address",
    }
    for place, why in told.items():
        reason = f"no server answers at {place} ({why})"
        assert pull(place, "m", limit_s=LIMIT_S, report=pytest.fail) == Miss("registry", reason)


def test_a_pull_that_never_ends_is_given_up_and_stopped(serve: Serve) -> None:
    def trickle(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for number in range(1_000_000):
            connection.sendall(line({"status": f"pulling, {number}"}))
            time.sleep(0.01)

    puller = serve(play=trickle)
    assert pulled(puller, limit_s=0.3) == (Miss("registry", "the pull did not finish within its limit"), [])
    # The server stops a pull whose client has gone.
    assert puller.left.wait(LIMIT_S)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_is_not_asked_for_the_server(serve: Serve, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert pulled(serve(HEAD, line(SUCCESS), END))[0] is None
