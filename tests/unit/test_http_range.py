"""One connection to a resource: where redirects lead, who is told the token, and what an error leaves."""

from __future__ import annotations

import http.client
import random
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest

from tests.fakes.range_server import Answer, App, Fault, Request, Serve, serving, starting
from worker.http_answer import SILENCE_TIMEOUT_S, NotThere, TransferFailed
from worker.http_range import BUFFER_BYTES, Line, Origin, RangeIgnored

SIZE = BUFFER_BYTES + 300_000
CONTENT = random.Random(2).randbytes(SIZE)  # noqa: S311 - content, not a secret
SPAN = (1000, SIZE - 7)
TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
def serve() -> Iterator[Serve]:
    with starting(serving({"/m": CONTENT})) as start:
        yield start


class Reader:
    """A line that keeps what it is given."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.origin = Origin(lambda: url, SIZE, headers or {})
        self.line = Line(self.origin)
        self.got = bytearray()

    def fetch(self, start: int, end: int) -> bytes:
        self.got.clear()

        def write(data: memoryview, offset: int) -> None:
            assert offset == start + len(self.got)
            self.got += data

        self.line.fetch(start, end, write)
        return bytes(self.got)

    def close(self) -> None:
        self.line.close()


def moved(url: str) -> App:
    return lambda _: Answer(302, headers={"Location": url})


@pytest.fixture
def dead_url() -> Iterator[str]:
    # Bound and not listening: whoever asks there is refused.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/m"


def test_ranges_come_over_one_connection_that_is_kept(serve: Serve) -> None:
    server = serve()
    with closing(Reader(f"{server.url}/m")) as reader:
        for start, end in (SPAN, (0, 1), (SIZE - 1, SIZE)):
            assert reader.fetch(start, end) == CONTENT[start:end]
        assert reader.line.came_bytes == SPAN[1] - SPAN[0] + 2


def test_what_came_before_an_error_is_right_and_counted(serve: Serve) -> None:
    cut_at = BUFFER_BYTES + 1234
    with closing(Reader(f"{serve(faults=[Fault(cut_at=cut_at)]).url}/m")) as reader:
        with pytest.raises(ConnectionError, match="bytes too early"):
            reader.fetch(*SPAN)
        assert reader.got == CONTENT[SPAN[0] : SPAN[0] + cut_at]
        assert reader.line.came_bytes == cut_at
        # The next fetch opens another connection.
        assert reader.fetch(*SPAN) == CONTENT[SPAN[0] : SPAN[1]]


def test_what_came_before_a_reset_is_kept(serve: Serve) -> None:
    # In small steps, as on a slow connection: what the step that fails had got is all that is lost.
    with closing(Reader(f"{serve(faults=[Fault(reset_at=BUFFER_BYTES // 2, rate_bytes_per_s=1e6)]).url}/m")) as reader:
        with pytest.raises(ConnectionError):
            reader.fetch(*SPAN)
        assert len(reader.got) == reader.line.came_bytes > 0
        assert reader.got == CONTENT[SPAN[0] :][: len(reader.got)]
        assert reader.fetch(*SPAN) == CONTENT[SPAN[0] : SPAN[1]]


def test_an_aborted_line_asks_nobody_any_more(serve: Serve) -> None:
    server = serve(faults=lambda _: Fault(stall_at=0))
    began_s = time.monotonic()
    with closing(Reader(f"{server.url}/m")) as reader:
        reader.line.abort()
        with pytest.raises(ConnectionAbortedError):
            reader.fetch(*SPAN)
    assert time.monotonic() - began_s < SILENCE_TIMEOUT_S / 2


def test_a_fast_connection_is_read_in_few_steps(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    readinto = http.client.HTTPResponse.readinto

    def counted(answer: http.client.HTTPResponse, room: memoryview) -> int:
        steps.append(len(room))
        return readinto(answer, room)

    monkeypatch.setattr(http.client.HTTPResponse, "readinto", counted)
    with closing(Reader(f"{serve().url}/m")) as reader:
        for _ in range(8):
            assert reader.fetch(0, SIZE) == CONTENT
    # Each as much as has come before: a quarter of a buffer, and soon all that is left of it.
    assert max(steps) >= BUFFER_BYTES / 2 >= 2 * steps[0]
    assert len(steps) <= 8 * 5


def test_the_token_goes_to_its_own_host_under_any_path(serve: Serve) -> None:
    def app(request: Request) -> Answer:
        if request.headers.get("authorization") != TOKEN["Authorization"]:
            return Answer(401)
        return Answer(307, headers={"Location": "/m"}) if request.path == "/old" else serving({"/m": CONTENT})(request)

    server = serve(app)
    with closing(Reader(f"{server.url}/old", TOKEN)) as reader:
        assert reader.fetch(*SPAN) == CONTENT[SPAN[0] : SPAN[1]]
        assert reader.fetch(0, 5) == CONTENT[:5]
    # Where it led is asked straight away the second time.
    assert [request.path for request in server.requests] == ["/old", "/m", "/m"]


def test_the_token_goes_to_no_other_host(serve: Serve) -> None:
    storage = serve()
    with closing(Reader(f"{serve(moved(f'{storage.url}/m')).url}/x", TOKEN)) as reader:
        assert reader.fetch(*SPAN) == CONTENT[SPAN[0] : SPAN[1]]
    assert ["authorization" in request.headers for request in storage.requests] == [False]


def test_the_address_is_asked_again_when_where_it_led_is_gone(serve: Serve, dead_url: str) -> None:
    storage = serve()
    places = [dead_url, f"{storage.url}/m"]
    home = serve(lambda _: Answer(302, headers={"Location": places.pop(0)}))
    with closing(Reader(f"{home.url}/m")) as reader:
        with pytest.raises(ConnectionRefusedError):
            reader.fetch(*SPAN)
        assert reader.fetch(*SPAN) == CONTENT[SPAN[0] : SPAN[1]]
    assert places == []


def test_the_address_is_asked_again_when_where_it_led_breaks_off(serve: Serve) -> None:
    first, second = serve(faults=[Fault(reset_at=5000)]), serve()
    places = [f"{first.url}/m", f"{second.url}/m"]
    home = serve(lambda _: Answer(302, headers={"Location": places.pop(0)}))
    with closing(Reader(f"{home.url}/m")) as reader:
        with pytest.raises(ConnectionResetError):
            reader.fetch(*SPAN)
        assert reader.fetch(*SPAN) == CONTENT[SPAN[0] : SPAN[1]]
    assert len(second.requests) == 1


def test_an_address_that_is_not_there_is_asked_once(serve: Serve) -> None:
    server = serve(lambda _: Answer(404))
    with closing(Reader(f"{server.url}/m")) as reader, pytest.raises(NotThere):
        reader.fetch(*SPAN)
    assert len(server.requests) == 1


def test_the_whole_for_a_part_is_told_from_the_whole_for_the_whole(serve: Serve) -> None:
    server = serve(faults=lambda _: Fault(whole=True))
    with closing(Reader(f"{server.url}/m")) as reader:
        assert reader.fetch(0, SIZE) == CONTENT
        with pytest.raises(RangeIgnored):
            reader.fetch(*SPAN)


def test_other_bytes_than_were_asked_for_are_refused(serve: Serve) -> None:
    headers = {"Content-Range": f"bytes 0-9/{SIZE}"}
    with closing(Reader(f"{serve(lambda _: Answer(206, bytes(10), headers)).url}/m")) as reader:
        assert reader.fetch(0, 10) == bytes(10)
        with pytest.raises(TransferFailed, match="asked for bytes 5-14, got 0-9"):
            reader.fetch(5, 15)
