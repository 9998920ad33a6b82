"""What the server refuses, with which status and in which words, in the form of the API that was called."""

from __future__ import annotations

import pytest
import requests

from tests.fakes.api_server import ApiServer

NATIVE_POSTS = ["/api/chat", "/api/generate", "/api/embed", "/api/show", "/api/pull"]
OPENAI_POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
HI = [{"role": "user", "content": "hi"}]


def refusal(response: requests.Response) -> str:
    """Return the text of a native error, whose body holds nothing else."""
    body = response.json()
    assert list(body) == ["error"]
    return str(body["error"])


def openai_refusal(response: requests.Response) -> dict[str, str | None]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


@pytest.mark.parametrize("path", NATIVE_POSTS)
def test_no_body_is_400(api: ApiServer, path: str) -> None:
    response = api.post(path)
    assert (response.status_code, refusal(response)) == (400, "missing request body")


@pytest.mark.parametrize("path", OPENAI_POSTS)
def test_no_body_is_400_in_openais_form(api: ApiServer, path: str) -> None:
    response = api.post(path)
    expected = {"message": "EOF", "type": "invalid_request_error", "param": None, "code": None}
    assert (response.status_code, openai_refusal(response)) == (400, expected)


@pytest.mark.parametrize("body", ["{x", "[1]", '{"model": 5}', "}{"])
@pytest.mark.parametrize("path", NATIVE_POSTS)
def test_a_wrong_body_is_400(api: ApiServer, path: str, body: str) -> None:
    response = api.post(path, data=body)
    assert response.status_code == 400
    assert refusal(response)


@pytest.mark.parametrize(
    "body", ["{x", "[1]", '{"model": 5, "messages": [{"role": "user", "content": "x"}], "input": "x"}']
)
@pytest.mark.parametrize("path", OPENAI_POSTS)
def test_a_wrong_body_is_400_in_openais_form(api: ApiServer, path: str, body: str) -> None:
    response = api.post(path, data=body)
    assert response.status_code == 400
    assert openai_refusal(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/api/chat", 400, "model is required"),
        ("/api/generate", 404, "model '' not found"),
        ("/api/show", 400, "model is required"),
    ],
)
def test_a_missing_model_name_is_refused(api: ApiServer, path: str, status: int, text: str) -> None:
    response = api.post(path, {"messages": HI})
    assert (response.status_code, refusal(response)) == (status, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/api/chat", "model 'absent' not found"),
        ("/api/generate", "model 'absent' not found"),
        ("/api/show", "model 'absent:latest' not found"),
        ("/api/embed", 'model "absent" not found, try pulling it first'),
    ],
)
def test_an_absent_model_is_404(api: ApiServer, path: str, text: str) -> None:
    response = api.post(path, {"model": "absent", "messages": HI, "prompt": "x", "input": "x"})
    assert (response.status_code, refusal(response)) == (404, text)


@pytest.mark.parametrize("path", OPENAI_POSTS)
def test_an_absent_model_is_404_in_openais_form(api: ApiServer, path: str) -> None:
    response = api.post(path, {"model": "absent", "messages": HI, "prompt": "x", "input": "x"})
    assert response.status_code == 404
    error = openai_refusal(response)
    assert error["type"] == "not_found_error"
    assert "absent" in str(error["message"])


def test_an_absent_model_is_404_by_path(api: ApiServer) -> None:
    response = api.get("/v1/models/absent")
    assert response.status_code == 404
    assert openai_refusal(response)["message"] == "model 'absent:latest' not found"


def test_deleting_an_absent_model_is_404(api: ApiServer) -> None:
    response = requests.delete(f"{api.url}/api/delete", json={"model": "absent"}, timeout=30)
    assert (response.status_code, refusal(response)) == (404, "model 'absent' not found")
