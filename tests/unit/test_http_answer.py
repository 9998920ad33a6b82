from __future__ import annotations

import email.utils
import time

import pytest

from tests.fakes.range_server import Answer, Fault, RangeServer, Request
from worker.http_answer import Busy, NotThere, TransferFailed, ask, connect, retry_after_s, shown, target


def test_a_small_resource_is_read() -> None:
    def app(request: Request) -> Answer:
        return Answer(body=f"{request.path} {request.headers['accept']}".encode(), headers={"X-Kind": "small"})

    with RangeServer(app) as server:
        headers, body = ask(f"{server.url}/a?b=c", {"Accept": "text/x"})
        assert (headers["X-Kind"], body) == ("small", b"/a?b=c text/x")
        assert ask(server.url, {"Accept": "y"})[1] == b"/ y"
        assert ask(server.url, {"Accept": "y"}, limit_bytes=1)[1] == b"/"
        assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Answer(404), NotThere, "there is no such file (HTTP 404)"),
        (Answer(410), NotThere, "there is no such file (HTTP 410)"),
        (Answer(403), TransferFailed, "access is denied (HTTP 403 Forbidden)"),
        (Answer(302), TransferFailed, "the server answers HTTP 302 Found"),
        (Answer(503), Busy, "HTTP 503"),
        (Answer(408), Busy, "HTTP 408"),
    ],
)
def test_what_a_status_means(answer: Answer, kind: type[Exception], words: str) -> None:
    with RangeServer(lambda _: answer) as server, pytest.raises(kind) as caught:
        ask(server.url)
    assert str(caught.value).startswith(words)


def test_a_server_says_when_to_come_again() -> None:
    with RangeServer(lambda _: Answer(), faults=[Fault(status=429, headers={"Retry-After": "7"})]) as server:
        with pytest.raises(Busy) as caught:
            ask(server.url)
        assert caught.value.retry_after_s == 7.0
        ask(server.url)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("0", 0.0), (" 120 ", 120.0), ("soon", None), ("-1", None)]
)
def test_retry_after_in_seconds(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text) == seconds


def test_retry_after_as_a_date() -> None:
    found = retry_after_s(email.utils.formatdate(time.time() + 100, usegmt=True))
    assert found is not None
    assert 90 < found <= 101
    assert retry_after_s(email.utils.formatdate(0, usegmt=True)) == 0.0


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "http://", "host/x", ""])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(TransferFailed, match="is no http address"):
        connect(url)


def test_signatures_are_not_shown() -> None:
    assert shown("https://host/a?X-Amz-Signature=secret") == "https://host/a"
    with pytest.raises(TransferFailed) as caught:
        connect("ftp://host/a?token=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "text"), [("http://h", "/"), ("http://h?a=b", "/?a=b"), ("http://h/x%20y?c=d#e", "/x%20y?c=d")]
)
def test_the_target_of_a_request(url: str, text: str) -> None:
    assert target(url) == text
