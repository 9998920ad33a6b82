"""OpenAI's API as the server speaks it: /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
import requests

from tests.fakes import chat_templates
from tests.fakes.api_server import ApiServer

HI = [{"role": "user", "content": "Say hi."}]
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}
DONE = "data: [DONE]"
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def events(response: requests.Response) -> list[dict[str, Any]]:
    """Return the chunks of a stream; every event ends with an empty line and the last one is [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "text/event-stream"
    # Without a charset in the header, requests would take the text for Latin-1.
    text = response.content.decode()
    assert text.endswith(f"{DONE}\n\n")
    found = [event for event in text.split("\n\n") if event]
    assert all(event.startswith("data: ") for event in found)
    assert found.count(DONE) == 1
    return [json.loads(event.removeprefix("data: ")) for event in found[:-1]]


def refusal(response: requests.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert error["param"] is None
    assert error["code"] is None
    return response.status_code, error["type"], error["message"]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "smol", "messages": HI, "max_tokens": 3, "temperature": 0, "seed": 1, **more}


def completion(**more: Any) -> dict[str, Any]:
    return {"model": "smol", "prompt": "Say hi.", "max_tokens": 3, "temperature": 0, "seed": 1, **more}


def test_a_chat_is_whole_unless_streaming_is_asked_for(api: ApiServer) -> None:
    response = api.post("/v1/chat/completions", chat())
    assert response.headers["Content-Type"] == "application/json"
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "smol"
    assert isinstance(body["created"], int)
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    usage = body["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + 3


def test_a_streamed_chat_opens_with_the_role_and_ends_with_a_reason(api: ApiServer) -> None:
    chunks = events(api.post("/v1/chat/completions", chat(stream=True)))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("role") for delta in deltas] == ["assistant", None, None, None]
    assert all(delta["content"] for delta in deltas[:-1])
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(api: ApiServer) -> None:
    body = chat(stream=True, stream_options={"include_usage": True})
    *_, last, usage = events(api.post("/v1/chat/completions", body))
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 3


def test_the_streamed_chat_is_the_whole_one(api: ApiServer) -> None:
    chunks = events(api.post("/v1/chat/completions", chat(stream=True)))
    whole = api.post("/v1/chat/completions", chat()).json()
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert streamed == whole["choices"][0]["message"]["content"]


def test_a_completion_is_whole_unless_streaming_is_asked_for(api: ApiServer) -> None:
    body = api.post("/v1/completions", completion()).json()
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert choice["text"]
    assert body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("usage", [True, False])
def test_a_streamed_completion(api: ApiServer, *, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = events(api.post("/v1/completions", completion(stream=True, **options)))
    whole = api.post("/v1/completions", completion()).json()
    told = [chunk for chunk in chunks if chunk["choices"]]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(chunk["choices"][0]["text"] for chunk in told) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in told] == [None, None, None, "length"]
    # Unlike a chat, every chunk carries a usage, of zeros until the last.
    assert [chunk.get("usage", {}).get("completion_tokens") for chunk in chunks] == (
        [0, 0, 0, 0, 3] if usage else [None] * 4
    )


def test_content_can_be_a_list_of_texts(api: ApiServer) -> None:
    content = [{"type": "text", "text": "Say"}, {"type": "text", "text": "hi."}]
    body = api.post("/v1/chat/completions", chat(messages=[{"role": "user", "content": content}])).json()
    assert body["choices"][0]["message"]["content"]


def test_a_stop_text_may_stand_alone(api: ApiServer) -> None:
    free = api.post("/v1/chat/completions", chat(max_tokens=8)).json()["choices"][0]["message"]["content"]
    stop = free[len(free) // 2 :]
    choice = api.post("/v1/chat/completions", chat(max_tokens=8, stop=stop)).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert stop not in choice["message"]["content"]


@pytest.mark.parametrize(
    "form", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "age", "schema": SCHEMA}}]
)
def test_a_response_format_is_followed(api: ApiServer, form: dict[str, Any]) -> None:
    body = api.post("/v1/chat/completions", chat(max_tokens=120, response_format=form)).json()
    answer = json.loads(body["choices"][0]["message"]["content"])
    assert isinstance(answer, dict)
    if form["type"] == "json_schema":
        assert list(answer) == ["age"]


def test_thoughts_are_called_reasoning(api: ApiServer) -> None:
    chunks = events(api.post("/v1/chat/completions", chat(model="think", stream=True)))
    assert "".join(chunk["choices"][0]["delta"].get("reasoning", "") for chunk in chunks)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == ""
    whole = api.post("/v1/chat/completions", chat(model="think", reasoning_effort="none")).json()
    assert whole["choices"][0]["message"]["content"]
    assert "reasoning" not in whole["choices"][0]["message"]


def test_a_tool_call_has_its_arguments_as_text(api: ApiServer) -> None:
    body = chat(
        model="tools", messages=chat_templates.conversation(openai=True), tools=[chat_templates.WEATHER], max_tokens=60
    )
    (choice,) = api.post("/v1/chat/completions", body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["index"], call["function"]["name"]) == ("function", 0, "get_weather")
    assert list(json.loads(call["function"]["arguments"])) == ["city"]


def test_a_streamed_tool_call_comes_in_one_chunk(api: ApiServer) -> None:
    body = chat(
        model="tools", messages=chat_templates.conversation(openai=True), tools=[chat_templates.WEATHER], max_tokens=60
    )
    chunks = events(api.post("/v1/chat/completions", body | {"stream": True}))
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [call["function"]["name"] for call in calls] == ["get_weather"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"messages": []}, "[] is too short - 'messages'"),
        ({"reasoning_effort": "high"}, '"smol" does not support thinking'),
        ({"tools": [chat_templates.WEATHER]}, "registry.ollama.ai/library/smol:latest does not support tools"),
    ],
    ids=["no messages", "thinking", "tools"],
)
def test_what_cannot_be_done_is_400(api: ApiServer, more: dict[str, Any], message: str) -> None:
    assert refusal(api.post("/v1/chat/completions", chat(**more))) == (400, "invalid_request_error", message)


def test_an_image_is_an_error_for_a_text_model(api: ApiServer) -> None:
    content = [{"type": "image_url", "image_url": {"url": PIXEL}}]
    status, kind, message = refusal(
        api.post("/v1/chat/completions", chat(messages=[{"role": "user", "content": content}]))
    )
    assert (status, kind) == (500, "api_error")
    assert "image input is not supported" in message


def test_a_damaged_model_is_500_in_openais_form_too(api: ApiServer) -> None:
    status, kind, message = refusal(api.post("/v1/chat/completions", chat(model="broken", stream=True)))
    assert (status, kind) == (500, "api_error")
    assert message


def test_openais_own_client_chats_streams_and_calls_tools(api: ApiServer) -> None:
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:
        assert "smol:latest" in {model.id for model in client.models.list()}
        whole = client.chat.completions.create(model="smol", messages=HI, max_tokens=3, temperature=0, seed=1)
        with client.chat.completions.create(
            model="smol", messages=HI, max_tokens=3, temperature=0, seed=1, stream=True
        ) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        called = client.chat.completions.create(
            model="tools",
            messages=chat_templates.conversation(openai=True),
            tools=[chat_templates.WEATHER],
            max_tokens=60,
            temperature=0,
        )
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="absent", messages=HI)
        embedded = client.embeddings.create(model="embed", input="one")
    assert whole.choices[0].message.content == "".join(pieces)
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert "model 'absent' not found" in str(caught.value)
    assert len(embedded.data[0].embedding) > 1
