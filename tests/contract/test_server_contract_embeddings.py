"""Embeddings in the three ways the server offers them: /api/embed, /api/embeddings, /v1/embeddings."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import pytest
import requests

from tests.fakes.api_server import ApiServer


def error(response: requests.Response) -> tuple[int, str]:
    body = response.json()
    assert list(body) == ["error"]
    return response.status_code, body["error"]


def test_an_embedding_has_unit_length(api: ApiServer) -> None:
    body = api.post("/api/embed", {"model": "embed", "input": ["one", "two words"]}).json()
    assert body["model"] == "embed"
    assert len(body["embeddings"]) == 2
    assert body["embeddings"][0] != body["embeddings"][1]
    for vector in body["embeddings"]:
        assert math.isclose(sum(value * value for value in vector), 1, rel_tol=1e-4)
    assert body["total_duration"] > 0
    assert body["prompt_eval_count"] > 0


def test_the_same_text_has_the_same_embedding(api: ApiServer) -> None:
    one, again = (api.post("/api/embed", {"model": "embed", "input": "one"}).json()["embeddings"][0] for _ in range(2))
    assert one == pytest.approx(again, abs=1e-5)


def test_no_input_only_loads(api: ApiServer) -> None:
    assert api.post("/api/embed", {"model": "embed"}).json() == {"model": "embed", "embeddings": []}
    assert api.post("/api/embeddings", {"model": "embed"}).json() == {"embedding": []}


def test_the_older_call_gives_one_embedding(api: ApiServer) -> None:
    body = api.post("/api/embeddings", {"model": "embed", "prompt": "one"}).json()
    assert list(body) == ["embedding"]
    assert all(isinstance(value, float) for value in body["embedding"])


def test_a_chat_model_makes_no_embeddings(api: ApiServer) -> None:
    expected = "This server does not support embeddings. Start it with `--embeddings`"
    assert error(api.post("/api/embed", {"model": "smol", "input": "x"})) == (501, expected)
    assert error(api.post("/api/embeddings", {"model": "smol", "prompt": "x"})) == (500, expected)


@pytest.mark.parametrize(
    ("path", "use"), [("/api/chat", "chat"), ("/api/generate", "generate")], ids=["chat", "generate"]
)
def test_an_embedding_model_does_not_talk(api: ApiServer, path: str, use: str) -> None:
    body = {"model": "embed", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    assert error(api.post(path, body)) == (400, f'"embed" does not support {use}')


def test_embeddings_as_numbers_and_packed(api: ApiServer) -> None:
    body = {"model": "embed", "input": ["one", "two"]}
    plain = api.post("/v1/embeddings", body).json()
    assert plain["object"] == "list"
    assert plain["model"] == "embed"
    assert [entry["index"] for entry in plain["data"]] == [0, 1]
    assert plain["usage"]["prompt_tokens"] == plain["usage"]["total_tokens"] > 0
    packed = api.post("/v1/embeddings", body | {"encoding_format": "base64"}).json()
    raw = base64.b64decode(packed["data"][0]["embedding"])
    unpacked = struct.unpack(f"<{len(raw) // 4}f", raw)
    assert unpacked == pytest.approx(plain["data"][0]["embedding"], abs=1e-4)


@pytest.mark.parametrize(
    "more",
    [{"input": None}, {"input": []}, {"input": "x", "encoding_format": "float16"}],
    ids=["none", "empty", "format"],
)
def test_embeddings_refuse_what_they_do_not_know(api: ApiServer, more: dict[str, Any]) -> None:
    response = api.post("/v1/embeddings", {"model": "embed", **more})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
