"""The fake server answers as it is told, and badly when it is told to."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from tests.fakes.api_server import ApiServer, wait_for
from tests.fakes.fake_script import Script

HI = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer("fake", tmp_path_factory.mktemp("fake")) as server:
        yield server


@pytest.fixture
def turn(fake: ApiServer) -> Iterator[Callable[..., None]]:
    """Turn knobs of the shared fake for one test."""
    turned: dict[str, Any] = {}

    def set_knobs(**knobs: Any) -> None:
        turned.update(knobs)
        assert fake.post("/fake/script", knobs).ok

    yield set_knobs
    usual = {name: getattr(Script, name) for name in turned}
    assert fake.post("/fake/script", usual).ok


def lines(server: ApiServer, path: str = "/api/chat", **more: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.post(path, {**HI, **more}).text.splitlines()]


def test_a_knob_that_does_not_exist_is_refused_later_too(fake: ApiServer) -> None:
    response = fake.post("/fake/script", {"tokenz": 3})
    assert (response.status_code, response.json()) == (400, {"error": "the fake server has no knob 'tokenz'"})


def test_the_same_request_gets_the_same_answer(fake: ApiServer) -> None:
    one, other = (fake.post("/api/chat", {**HI, "stream": False}).json()["message"]["content"] for _ in range(2))
    assert one == other
    assert "東京" in one
    assert "🦙" in one


def test_text_and_tokens_say_what_comes(fake: ApiServer, turn: Callable[..., None]) -> None:
    turn(text="a b", tokens=5)
    assert [line["message"]["content"] for line in lines(fake)] == ["a", " b", "a", " b", "a", ""]


def test_an_answer_can_be_slow(fake: ApiServer, turn: Callable[..., None]) -> None:
    turn(tokens=5, tokens_per_s=20, first_token_delay_s=0.2)
    began = time.monotonic()
    assert len(lines(fake)) == 6
    assert time.monotonic() - began >= 0.4


def test_every_byte_can_come_alone(fake: ApiServer, turn: Callable[..., None]) -> None:
    turn(split=True, tokens=2)
    connection = http.client.HTTPConnection("127.0.0.1", fake.port, timeout=60)
    connection.request("POST", "/api/chat", json.dumps(HI))
    response = connection.getresponse()
    pieces = []
    while piece := response.read1():
        pieces.append(piece)
    connection.close()
    # http.client hands out one chunk of the encoding at a time.
    assert {len(piece) for piece in pieces} == {1}
    assert json.loads(b"".join(pieces).splitlines()[-1])["done"] is True


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/api/chat", '{"error":"CUDA error"}'),
        ("/v1/chat/completions", '"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}'),
    ],
)
def test_an_error_ends_the_answer(fake: ApiServer, turn: Callable[..., None], path: str, last: str) -> None:
    turn(error_at_token=1, error="CUDA error")
    response = fake.post(path, {**HI, "stream": True})
    assert response.status_code == 200
    assert response.text.strip().endswith(last)
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_an_answer_can_end_without_its_end(fake: ApiServer, turn: Callable[..., None], path: str) -> None:
    turn(close_at_token=1)
    response = fake.post(path, {**HI, "stream": True})
    assert response.ok
    assert response.text
    assert "[DONE]" not in response.text
    assert '"done":true' not in response.text


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_token_can_be_garbage(fake: ApiServer, turn: Callable[..., None], path: str) -> None:
    turn(garbage_at_token=1, tokens=3)
    content = fake.post(path, {**HI, "stream": True}).content
    assert content.count(b"<html>") == 1
    assert content.count(b'"content":') == (3 if path == "/api/chat" else 2)


def test_a_connection_can_be_reset(fake: ApiServer, turn: Callable[..., None]) -> None:
    turn(drop_at_token=1)
    with pytest.raises(requests.RequestException):
        fake.post("/api/chat", HI)
    assert fake.get("/").ok


def test_an_answer_can_hang_until_the_client_leaves(fake: ApiServer, turn: Callable[..., None]) -> None:
    turn(hang_at_token=1)
    before = fake.get("/fake/stats").json()["cancelled"]
    with pytest.raises(requests.RequestException):
        requests.post(f"{fake.url}/api/chat", json=HI, timeout=0.5)
    assert wait_for(lambda: fake.get("/fake/stats").json()["cancelled"] == before + 1)


def test_a_refusal_can_be_for_the_first_requests_only(fake: ApiServer, turn: Callable[..., None]) -> None:
    turn(refuse_status=503, refuse_times=1)
    refused = fake.post("/api/chat", HI)
    assert refused.status_code == 503
    assert refused.json()["error"].startswith("server busy")
    assert fake.post("/api/chat", HI).ok
