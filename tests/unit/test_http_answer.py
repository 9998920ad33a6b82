from __future__ import annotations

import email.utils
import http.client
import time

import pytest

from tests.fakes.range_server import Answer, Fault, RangeServer, Request
from worker import http_answer
from worker.http_answer import Busy, NotThere, TransferFailed, ask, connect, redirected, retry_after_s, shown, target

# A time zone further away than any number of seconds.
_NO_DATE = "Wed, 21 Oct 2015 07:28:00 +99999999999999999999"


def test_a_small_resource_is_read() -> None:
    def app(request: Request) -> Answer:
        return Answer(body=f"{request.path} {request.headers['accept']}".encode(), headers={"X-Kind": "small"})

    with RangeServer(app) as server:
        headers, body = ask(f"{server.url}/a?b=c", {"Accept": "text/x"})
        assert (headers["X-Kind"], body) == ("small", b"/a?b=c text/x")
        assert ask(server.url, {"Accept": "y"})[1] == b"/ y"
        assert ask(server.url, {"Accept": "y"}, limit_bytes=3)[1] == b"/ y"
        with pytest.raises(TransferFailed, match="gives more than 2 bytes"):
            ask(server.url, {"Accept": "y"}, limit_bytes=2)
        assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("fault", [Fault(cut_at=700), Fault(cut_at=0)])
def test_half_an_answer_is_no_answer(fault: Fault) -> None:
    with RangeServer(lambda _: Answer(body=bytes(1000)), faults=[fault]) as server:
        with pytest.raises(http.client.IncompleteRead, match="more expected"):
            ask(server.url)
        assert len(ask(server.url)[1]) == 1000


def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answer, "SMALL_TIMEOUT_S", 0.2)
    with (
        RangeServer(lambda _: Answer(body=bytes(1 << 20)), rate_bytes_per_s=100e3) as server,
        pytest.raises(TimeoutError, match="has not come whole"),
    ):
        ask(server.url)


@pytest.mark.parametrize(
    "url", ["http://[::1/", "http://127.0.0.1:99999/", f"http://{'a' * 64}.x/", "http://127.0.0.1:1/ä", "http://h/a b"]
)
def test_an_address_that_cannot_be_asked_is_named(url: str) -> None:
    with pytest.raises(TransferFailed, match="is no http address: "):
        ask(url)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/new?a=b%20c", "https://host/new?a=b%20c"),
        ("other", "https://host/x/other"),
        ("http://cdn:80/y", "http://cdn:80/y"),
        ("/gr\u00c3\u00bcn und mehr", "https://host/gr%C3%BCn%20und%20mehr"),
        ("", "https://host/x/y"),
    ],
)
def test_where_a_redirect_leads(location: str, url: str) -> None:
    assert redirected("https://host/x/y", location) == url


def test_a_redirect_to_no_address_is_named() -> None:
    with pytest.raises(TransferFailed, match="is no http address"):
        redirected("https://host/x", "http://[::1/")


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
    ("text", "seconds"), [(None, None), ("0", 0.0), (" 120 ", 120.0), ("soon", None), ("-1", None), (_NO_DATE, None)]
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
