"""Ollama's own generation calls: /api/chat and /api/generate."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest
import requests

from tests.fakes import chat_templates
from tests.fakes.api_server import ApiServer

HI = [{"role": "user", "content": "Say hi."}]
SHORT = {"num_predict": 3, "temperature": 0, "seed": 1}
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}
METRICS = {
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def lines(response: requests.Response) -> list[dict[str, Any]]:
    """Return the objects of an NDJSON answer; every line ends with a newline, the last one too."""
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def error(response: requests.Response) -> tuple[int, str]:
    body = response.json()
    assert list(body) == ["error"]
    return response.status_code, body["error"]


@pytest.fixture(params=["/api/chat", "/api/generate"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(path: str, **more: Any) -> dict[str, Any]:
    """Return a body that asks for a short answer by `path`."""
    prompt = {"messages": HI} if path == "/api/chat" else {"prompt": "Say hi."}
    return {"model": "smol", "options": SHORT, **prompt, **more}


def text(answer: dict[str, Any]) -> str:
    return str(answer["message"]["content"] if "message" in answer else answer["response"])


def test_answers_stream_unless_declined(api: ApiServer, path: str) -> None:
    answers = lines(api.post(path, ask(path)))
    assert len(answers) == 4
    assert [answer["done"] for answer in answers] == [False, False, False, True]
    assert {answer["model"] for answer in answers} == {"smol"}
    assert all(answer["created_at"].endswith("Z") for answer in answers)
    assert all(text(answer) for answer in answers[:-1])
    assert text(answers[-1]) == ""


def test_the_last_object_carries_reason_counts_and_nanoseconds(api: ApiServer, path: str) -> None:
    last = lines(api.post(path, ask(path)))[-1]
    assert last["done_reason"] == "length"
    assert set(last) >= METRICS
    assert last["eval_count"] == 3
    assert last["prompt_eval_count"] > 0
    assert all(isinstance(last[name], int) and last[name] > 0 for name in METRICS)
    assert last["load_duration"] < last["total_duration"]


def test_only_the_last_object_carries_them(api: ApiServer, path: str) -> None:
    for answer in lines(api.post(path, ask(path)))[:-1]:
        assert set(answer) == {"model", "created_at", "done", "message" if path == "/api/chat" else "response"}


def test_a_whole_answer_is_the_streamed_one_joined(api: ApiServer, path: str) -> None:
    streamed = lines(api.post(path, ask(path)))
    response = api.post(path, ask(path, stream=False))
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    whole = response.json()
    assert text(whole) == "".join(text(answer) for answer in streamed)
    assert whole["done"] is True
    assert set(whole) == set(streamed[-1])


def test_a_chat_message_is_the_assistants(api: ApiServer) -> None:
    for answer in lines(api.post("/api/chat", ask("/api/chat"))):
        assert answer["message"]["role"] == "assistant"
        assert set(answer["message"]) == {"role", "content"}


def test_generate_returns_a_context_but_not_for_raw_prompts(api: ApiServer) -> None:
    cooked = api.post("/api/generate", ask("/api/generate", stream=False)).json()
    assert cooked["context"]
    assert all(isinstance(token, int) for token in cooked["context"])
    if api.kind != "fake":
        raw = api.post("/api/generate", ask("/api/generate", stream=False, raw=True)).json()
        assert "context" not in raw
        assert raw["prompt_eval_count"] < cooked["prompt_eval_count"]


def test_a_raw_prompt_takes_nothing_else(api: ApiServer) -> None:
    expected = (400, "raw mode does not support template, system, or context")
    assert error(api.post("/api/generate", ask("/api/generate", raw=True, system="x"))) == expected


def test_a_template_is_taken_or_refused_but_never_left_out_unsaid(api: ApiServer) -> None:
    if api.kind == "fake":
        pytest.skip("the fake has no templates")
    answer = api.post("/api/generate", ask("/api/generate", template="{{ .Nope"))
    assert answer.status_code == 400
    if api.kind == "engine":
        assert "the local engine takes no template" in answer.json()["error"]


def test_an_answer_that_ends_by_itself_has_the_reason_stop(api: ApiServer, path: str) -> None:
    options = {"temperature": 0, "num_predict": 200}
    whole = api.post(path, ask(path, stream=False, options=options)).json()
    assert whole["done_reason"] == "stop"
    assert 1 < whole["eval_count"] < 200


def test_a_stop_text_ends_the_answer_before_it(api: ApiServer, path: str) -> None:
    free = text(api.post(path, ask(path, stream=False, options={**SHORT, "num_predict": 8})).json())
    stop = free[len(free) // 2 :]
    whole = api.post(path, ask(path, stream=False, options={**SHORT, "num_predict": 8, "stop": [stop]})).json()
    assert stop not in text(whole)
    assert free.startswith(text(whole))
    assert whole["done_reason"] == "stop"


def test_format_json_gives_json(api: ApiServer, path: str) -> None:
    options = {"temperature": 0, "num_predict": 120}
    whole = api.post(path, ask(path, stream=False, format="json", options=options)).json()
    assert isinstance(json.loads(text(whole)), dict)


def test_a_schema_is_followed(api: ApiServer, path: str) -> None:
    options = {"temperature": 0, "num_predict": 60}
    whole = api.post(path, ask(path, stream=False, format=SCHEMA, options=options)).json()
    answer = json.loads(text(whole))
    assert list(answer) == ["age"]
    assert isinstance(answer["age"], int)


def test_thinking_is_refused_to_a_model_that_cannot(api: ApiServer, path: str) -> None:
    assert error(api.post(path, ask(path, think=True))) == (400, '"smol" does not support thinking')


def test_not_to_think_can_be_asked_of_any_model(api: ApiServer, path: str) -> None:
    assert text(api.post(path, ask(path, stream=False, think=False)).json())


def test_a_model_that_can_think_does_so_unless_told_not_to(api: ApiServer) -> None:
    answers = lines(api.post("/api/chat", ask("/api/chat", model="think")))
    assert "".join(answer["message"].get("thinking", "") for answer in answers)
    assert "".join(text(answer) for answer in answers) == ""
    asked = api.post("/api/chat", ask("/api/chat", model="think", think=True, stream=False)).json()
    assert asked["message"]["thinking"]
    declined = api.post("/api/chat", ask("/api/chat", model="think", think=False, stream=False)).json()
    assert text(declined)
    assert "thinking" not in declined["message"]


def test_an_image_is_an_error_for_a_text_model(api: ApiServer) -> None:
    messages = [{"role": "user", "content": "What is this?", "images": [PIXEL]}]
    status, message = error(api.post("/api/chat", ask("/api/chat", messages=messages)))
    assert status == 500
    assert "image input is not supported" in message


def test_a_suffix_is_refused_to_a_model_that_cannot_insert(api: ApiServer) -> None:
    expected = (400, "registry.ollama.ai/library/smol:latest does not support insert")
    assert error(api.post("/api/generate", ask("/api/generate", suffix="x"))) == expected


def test_tools_are_refused_to_a_model_that_cannot_call_them(api: ApiServer) -> None:
    expected = (400, "registry.ollama.ai/library/smol:latest does not support tools")
    assert error(api.post("/api/chat", ask("/api/chat", tools=[chat_templates.WEATHER]))) == expected


@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_call_is_decoded(api: ApiServer, *, stream: bool) -> None:
    body = {
        "model": "tools",
        "messages": chat_templates.conversation(openai=False),
        "tools": [chat_templates.WEATHER],
        "options": {"temperature": 0, "num_predict": 60},
        "stream": stream,
    }
    response = api.post("/api/chat", body)
    answers = lines(response) if stream else [response.json()]
    (call,) = [call for answer in answers for call in answer["message"].get("tool_calls", [])]
    assert call["id"]
    assert call["function"]["name"] == "get_weather"
    assert call["function"]["index"] == 0
    assert isinstance(call["function"]["arguments"]["city"], str)
    assert answers[-1]["done_reason"] == "stop"


def test_a_model_whose_file_is_damaged_is_500_and_the_server_lives_on(api: ApiServer, path: str) -> None:
    status, message = error(api.post(path, ask(path, model="broken")))
    assert status == 500
    assert message
    assert text(api.post(path, ask(path, stream=False)).json())


def test_ollamas_own_client_chats_streams_and_calls_tools(api: ApiServer) -> None:
    with ollama.Client(host=api.url) as client:
        whole = client.chat(model="smol", messages=HI, options=SHORT)
        pieces = list(client.chat(model="smol", messages=HI, options=SHORT, stream=True))
        called = client.chat(
            model="tools",
            messages=chat_templates.conversation(openai=False),
            tools=[chat_templates.WEATHER],
            options={"temperature": 0, "num_predict": 60},
        )
    assert whole.message.content == "".join(piece.message.content or "" for piece in pieces)
    assert pieces[-1].done_reason == "length"
    assert called.message.tool_calls is not None
    assert called.message.tool_calls[0].function.name == "get_weather"
