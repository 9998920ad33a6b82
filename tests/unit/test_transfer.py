from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.range_server import Answer, Fault, RangeServer, Request, Serve, serving, starting
from worker import http_answer, transfer
from worker.http_answer import TransferFailed
from worker.http_range import Origin
from worker.known_digest import Damaged
from worker.progress import Halted, Meter, Progress
from worker.resumable import Resumable
from worker.transfer import Terms, fetch

PIECE = 64 << 10
SIZE = 20 * PIECE + 1234
CONTENT = random.Random(1).randbytes(SIZE)  # noqa: S311 - content, not a secret
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = Terms(connections=4, piece_bytes=PIECE, patience_s=1.0, longest_wait_s=5.0, floor_bytes_per_s=0.0)


@pytest.fixture
def serve() -> Iterator[Serve]:
    with starting(serving({"/m": CONTENT})) as start:
        yield start


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Resumable]:
    with Resumable(tmp_path, "m", SIZE) as opened:
        yield opened


def origin(server: RangeServer, **more: object) -> Origin:
    return Origin(lambda: f"{server.url}/m", SIZE, **more)


def brought(server: RangeServer, target: Resumable, terms: Terms = QUICK) -> None:
    """Fetch, and check that what is there is right."""
    found = fetch(origin(server), target, Meter(SIZE, already_bytes=target.there_bytes), sha256=SHA256, terms=terms)
    assert found == SHA256
    assert target.path.read_bytes() == CONTENT


def again(target: Resumable) -> Resumable:
    """Open what is left as the next process would."""
    target.close()
    return Resumable(target.path.parent, "m", SIZE)


def test_a_file_comes_whole_over_several_connections(serve: Serve, target: Resumable) -> None:
    server = serve()
    brought(server, target)
    assert server.sent_bytes == SIZE
    assert {request.span for request in server.requests} == set(target.missing(PIECE))
    assert len(server.requests) == 21
    assert target.finish().read_bytes() == CONTENT
    assert sorted(path.name for path in target.path.parent.iterdir()) == ["m.data"]


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1])
def test_sizes_at_the_borders_of_pieces(serve: Serve, tmp_path: Path, size: int) -> None:
    server = serve(serving({"/m": CONTENT[:size]}))
    with Resumable(tmp_path, "m", size) as target:
        wanted = hashlib.sha256(CONTENT[:size]).hexdigest()
        assert fetch(Origin(lambda: f"{server.url}/m", size), target, Meter(size), terms=QUICK) == wanted
        assert target.path.read_bytes() == CONTENT[:size]


def first(*faults: Fault) -> list[Fault]:
    return list(faults)


@pytest.mark.parametrize(
    ("faults", "most_bytes"),
    [
        (first(Fault(status=503), Fault(status=500), Fault(status=502)), SIZE),
        (first(Fault(status=429, headers={"Retry-After": "0"})), SIZE),
        (first(Fault(cut_at=1000), Fault(cut_at=0), Fault(cut_at=PIECE - 1)), SIZE),
        # What was on its way when the reset came is sent again.
        (first(Fault(reset_at=PIECE // 2), Fault(reset_at=0)), SIZE + PIECE),
        (first(*[Fault(status=503)] * 12), SIZE),
    ],
    ids=["5xx", "429", "cut", "reset", "a storm of 503"],
)
def test_what_passes_is_waited_for_and_gone_on_from(
    serve: Serve, target: Resumable, faults: list[Fault], most_bytes: int
) -> None:
    server = serve(faults=faults)
    brought(server, target)
    assert not faults
    assert SIZE <= server.sent_bytes <= most_bytes


def test_the_server_is_asked_again_when_it_wants_to_be(serve: Serve, target: Resumable) -> None:
    times: list[float] = []

    def faults(request: Request) -> Fault | None:
        if request.span and request.span[0] == 0:
            times.append(time.monotonic())
            return Fault(status=429, headers={"Retry-After": "1"}) if len(times) == 1 else None
        return None

    brought(serve(faults=faults), target, replace(QUICK, patience_s=0.5))
    assert times[1] - times[0] >= 1.0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=404), "there is no such file (HTTP 404)"),
        (Fault(status=401), "access is denied (HTTP 401 Unauthorized): the token or the keys are wrong or have run"),
        (Fault(status=418), "the server answers HTTP 418 I'm a Teapot"),
        (Fault(total=SIZE + 1), f"the file has {SIZE + 1:,} bytes and not {SIZE:,}"),
        (Fault(status=429, headers={"Retry-After": "86400"}), "the server wants to be asked again in 86400 s (HTTP"),
        (Fault(status=503), "nothing came for 1 s; the last failure: HTTP 503"),
        (Fault(cut_at=0), "nothing came for 1 s; the last failure: ConnectionError"),
        (Fault(status=302, headers={"Location": "/m"}), "more than 5 redirects"),
        (Fault(status=302, headers={"Location": "file:///etc/passwd"}), "'file:///etc/passwd' is no http address"),
        (Fault(status=302, headers={"Location": "http://[::1/m"}), "'http://[::1/m' is no http address"),
        (Fault(status=302, headers={"Location": "http://127.0.0.1:99999/m"}), "is no http address: Port out of range"),
        (Fault(status=302, headers={"Location": f"http://{'a' * 64}.x/m"}), "is no http address"),
        (Fault(status=206, headers={"Content-Range": f"bytes {'9' * 5000}-1/2"}), "the server answers HTTP 206"),
    ],
)
def test_what_does_not_pass_is_said_and_what_came_is_kept(
    serve: Serve, target: Resumable, fault: Fault, words: str
) -> None:
    def faults(request: Request) -> Fault | None:
        return None if request.span and request.span[0] < 4 * PIECE else fault

    with pytest.raises(TransferFailed) as caught:
        brought(serve(faults=faults), target)
    assert words in str(caught.value)
    server = serve()
    with again(target) as left:
        kept_bytes = left.there_bytes
        brought(server, left)
    assert server.sent_bytes == SIZE - kept_bytes


def test_wrong_bytes_leave_nothing(serve: Serve, target: Resumable) -> None:
    with pytest.raises(Damaged, match="the bytes have sha256"):
        brought(serve(faults=[Fault(flip_at=7)]), target)
    assert not list(target.path.parent.iterdir())


def test_a_file_that_is_replaced_meanwhile_is_noticed(serve: Serve, target: Resumable) -> None:
    server = serve()
    with pytest.raises(TransferFailed, match="the file was replaced while it was read"):
        fetch(origin(server, etag="older"), target, Meter(SIZE), terms=QUICK)


def whole_only(request: Request) -> Answer:
    return Answer(body=CONTENT if request.path == "/m" else b"", ranges=False)


def test_a_server_without_ranges_gives_the_file_in_one(serve: Serve, target: Resumable) -> None:
    server = serve(whole_only)
    brought(server, target)
    assert len([request for request in server.requests if request.span is None]) == 1


def test_a_single_stream_that_breaks_begins_again(serve: Serve, target: Resumable) -> None:
    broken: list[int] = []

    def faults(request: Request) -> Fault | None:
        if request.span is None and len(broken) < 2:
            broken.append(request.number)
            return Fault(cut_at=SIZE // 2)
        return None

    brought(serve(whole_only, faults=faults), target)
    assert len(broken) == 2


def test_a_single_stream_that_keeps_breaking_is_given_up(serve: Serve, target: Resumable) -> None:
    with pytest.raises(TransferFailed, match="no parts of files to go on from"):
        brought(serve(whole_only, faults=lambda _: Fault(cut_at=SIZE // 2)), target)


def test_a_redirect_is_followed_once_and_the_token_stays_at_home(serve: Serve, target: Resumable) -> None:
    storage = serve()
    home = serve(lambda _: Answer(302, headers={"Location": f"{storage.url}/m?signed=yes"}))
    headers = {"Authorization": "Bearer secret"}
    found = fetch(Origin(lambda: f"{home.url}/m", SIZE, headers), target, Meter(SIZE), sha256=SHA256, terms=QUICK)
    assert found == SHA256
    assert 1 <= len(home.requests) <= 4
    assert all(request.headers["authorization"] == "Bearer secret" for request in home.requests)
    assert all("authorization" not in request.headers for request in storage.requests)
    assert storage.sent_bytes == SIZE


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_an_address_that_runs_out_is_renewed(serve: Serve, target: Resumable, status: int) -> None:
    issued: list[str] = []
    used: dict[str, int] = {}

    def address() -> str:
        issued.append(f"{server.url}/m?ticket={len(issued)}")
        return issued[-1]

    def app(request: Request) -> Answer:
        # Each ticket is good for five requests.
        used[request.path] = used.get(request.path, 0) + 1
        return Answer(status) if used[request.path] > 5 else serving({"/m": CONTENT})(request)

    storage = serve(app)
    server = serve(lambda request: Answer(302, headers={"Location": f"{storage.url}{request.path}"}))
    terms = replace(QUICK, connections=1)
    assert fetch(Origin(address, SIZE), target, Meter(SIZE), sha256=SHA256, terms=terms) == SHA256
    assert len(issued) == 5  # 21 pieces, 5 to a ticket


@pytest.mark.usefixtures("target")
def test_a_server_that_falls_silent_is_asked_anew(
    serve: Serve, target: Resumable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_answer, "SILENCE_TIMEOUT_S", 0.3)
    brought(serve(faults=[Fault(stall_at=100), Fault(stall_at=0)]), target)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_die_of_anything_else_end_the_transfer(
    serve: Serve, target: Resumable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("worker.http_range.Line.fetch", without_memory)
    with pytest.raises(TransferFailed, match="the connections ended before everything had come"):
        brought(serve(), target)


def test_a_server_that_wants_to_be_asked_at_once_is_not_flooded(serve: Serve, target: Resumable) -> None:
    server = serve(faults=lambda _: Fault(status=429, headers={"Retry-After": "0"}))
    with pytest.raises(TransferFailed, match="HTTP 429"):
        brought(server, target, replace(QUICK, longest_wait_s=0.5))
    # 4 connections that wait 0.25, 0.5 and 1 s in between.
    assert 4 <= len(server.requests) <= 20


def test_waiting_as_asked_is_not_being_slow(serve: Serve, target: Resumable) -> None:
    faults = [Fault(status=429, headers={"Retry-After": "1"}) for _ in range(4)]
    brought(serve(faults=faults), target, replace(QUICK, floor_bytes_per_s=1.0, slow_s=0.2))
    assert not faults


def test_what_has_come_counts_before_a_piece_is_there(serve: Serve, target: Resumable) -> None:
    # Each connection takes longer for its piece than the time after which the speed is looked at.
    terms = replace(QUICK, piece_bytes=-(-SIZE // 4), floor_bytes_per_s=200e3, slow_s=2.0)
    brought(serve(rate_bytes_per_s=150e3), target, terms)


def test_the_last_piece_may_come_alone_at_the_speed_of_one_connection(
    serve: Serve, target: Resumable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.http_range._STEP_S", 0.05)
    monkeypatch.setattr("worker.http_range._LEAST_STEP_BYTES", 8 << 10)
    # All four together are faster than the floor, and each alone is slower.
    terms = replace(QUICK, piece_bytes=-(-SIZE // 5), floor_bytes_per_s=350e3, slow_s=0.7)
    brought(serve(rate_bytes_per_s=200e3), target, terms)


def test_what_comes_slowly_is_not_nothing(serve: Serve, target: Resumable) -> None:
    refused: list[Request] = []

    def faults(request: Request) -> Fault:
        # The other connection takes three seconds for less than what is written at once.
        if "bytes=0-" in request.headers["range"]:
            return Fault(rate_bytes_per_s=SIZE / 6)
        refused.append(request)
        return Fault(status=503) if len(refused) <= 4 else Fault()

    brought(serve(faults=faults), target, replace(QUICK, connections=2, piece_bytes=-(-SIZE // 2), patience_s=1.5))
    assert len(refused) == 5


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
def test_a_halt_does_not_wait_for_a_silent_server(serve: Serve, target: Resumable, headers: dict[str, str]) -> None:
    asked_s: list[float] = []

    def app(request: Request) -> Answer:
        asked_s.append(time.monotonic())
        answer = serving({"/m": CONTENT})(request)
        return replace(answer, headers={**answer.headers, **headers})

    def halt() -> None:
        if asked_s and time.monotonic() - asked_s[0] > 0.3:
            raise Halted("SIGTERM")

    with pytest.raises(Halted):
        fetch(origin(serve(app, faults=lambda _: Fault(stall_at=100))), target, Meter(SIZE, halt=halt), terms=QUICK)
    # Silence alone is borne for longer.
    assert time.monotonic() - asked_s[0] < http_answer.SILENCE_TIMEOUT_S / 2


def test_connections_that_break_after_some_bytes_are_not_waited_for_ever_longer(
    serve: Serve, target: Resumable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_BACKOFF_S", (0.01, 600.0))
    server = serve(faults=lambda _: Fault(cut_at=PIECE))
    # Doubled each time, the wait would be 10 s after the tenth.
    brought(server, target, replace(QUICK, connections=1, piece_bytes=SIZE, patience_s=5.0))
    assert len(server.requests) == 21


def test_a_server_that_only_drips_is_given_up(serve: Serve, target: Resumable) -> None:
    terms = replace(QUICK, floor_bytes_per_s=1e6, slow_s=0.5)
    with pytest.raises(TransferFailed, match=r"only .* kB/s came for"):
        brought(serve(rate_bytes_per_s=20e3), target, terms)


def test_one_slow_connection_does_not_hold_up_the_others(serve: Serve, target: Resumable) -> None:
    done: list[int] = []

    def faults(request: Request) -> Fault | None:
        done.append(request.number)
        return Fault(rate_bytes_per_s=PIECE) if len(done) == 1 else None

    brought(serve(faults=faults), target)
    # The slow piece took a second; the three other connections brought all the rest.
    assert len(done) == 21


def test_a_halt_ends_the_transfer_and_keeps_what_came(serve: Serve, target: Resumable) -> None:
    moved = threading.Event()

    def halt() -> None:
        if moved.is_set():
            raise Halted("enough")

    server = serve(rate_bytes_per_s=200e3)
    meter = Meter(SIZE, halt=halt)
    threading.Timer(0.4, moved.set).start()
    with pytest.raises(Halted, match="enough"):
        fetch(origin(server), target, meter, terms=QUICK)
    assert moved.is_set()
    with again(target) as left:
        assert 0 < left.there_bytes < SIZE
        brought(serve(), left)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("fetch-", "digest"))]


def test_progress_counts_what_was_there_already(
    serve: Serve, target: Resumable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.progress.REPORT_INTERVAL_S", 0.0)
    target.write(memoryview(CONTENT)[: 5 * PIECE], 0)
    seen: list[Progress] = []
    with again(target) as left:
        meter = Meter(SIZE, seen.append, already_bytes=left.there_bytes)
        server = serve()
        fetch(origin(server), left, meter, sha256=SHA256, terms=QUICK)
    assert server.sent_bytes == SIZE - 5 * PIECE
    assert seen[0].done_bytes >= 5 * PIECE
    # Readers report from their own threads, so the last report need not be the last in the list.
    assert max(progress.done_bytes for progress in seen) == seen[0].total_bytes == SIZE


def test_a_full_disk_is_no_reason_to_ask_again(
    serve: Serve, target: Resumable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(target, "write", full)
    server = serve()
    with pytest.raises(OSError, match="No space left"):
        fetch(origin(server), target, Meter(SIZE), terms=QUICK)
    assert len(server.requests) <= 4


def test_many_connections_are_as_fast_as_the_server_lets_them(serve: Serve, tmp_path: Path) -> None:
    """Storage that gives each connection a share: the sum of the shares is the limit."""
    share, connections = 2e6, 8
    size = int(share * connections)  # one second's worth

    def seconds(count: int, size: int) -> float:
        server = serve(serving({"/m": bytes(size)}), rate_bytes_per_s=share)
        with Resumable(tmp_path, f"{count}", size) as target:
            began_s = time.monotonic()
            terms = Terms(connections=count, piece_bytes=size // (4 * count))
            transfer.fetch(Origin(lambda: f"{server.url}/m", size), target, Meter(size), terms=terms)
            return time.monotonic() - began_s

    alone, together = int(share) / seconds(1, int(share)), size / seconds(connections, size)
    # One after another they would be no faster than alone; the rest is room for what else the machine does.
    assert together >= 0.5 * connections * alone
