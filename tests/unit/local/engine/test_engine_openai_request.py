from __future__ import annotations

from typing import Any

import pytest

from worker.local.engine import openai_request
from worker.local.engine.body import Body
from worker.local.engine.reply import ApiError

HI = [{"role": "user", "content": "hi"}]
PIXEL = "iVBORw0KGgo="


def chat(**fields: Any) -> Body:
    return openai_request.chat(Body({"model": "m", "messages": HI, **fields}))


def messages(*given: dict[str, Any]) -> list[dict[str, Any]]:
    translated: list[dict[str, Any]] = chat(messages=list(given)).get("messages")
    return translated


def test_openais_defaults_are_not_ollamas() -> None:
    assert chat().get("options") == {"temperature": 1.0, "top_p": 1.0}


def test_options_get_ollamas_names() -> None:
    body = chat(max_tokens=5, temperature=0, top_p=0.5, seed=7, presence_penalty=0.1, frequency_penalty=0.2)
    expected = {"num_predict": 5, "temperature": 0, "top_p": 0.5, "seed": 7}
    assert body.get("options") == expected | {"presence_penalty": 0.1, "frequency_penalty": 0.2}


@pytest.mark.parametrize(("stop", "given"), [("x", ["x"]), (["x", "y"], ["x", "y"]), ([1, "y"], ["y"])])
def test_stop_becomes_a_list(stop: object, given: list[str]) -> None:
    assert chat(stop=stop).get("options")["stop"] == given


@pytest.mark.parametrize(
    ("effort", "think"), [(None, None), ("none", False), ("minimal", "low"), ("medium", "medium"), ("ultra", "max")]
)
def test_reasoning_effort_becomes_think(effort: str | None, think: object) -> None:
    assert chat(reasoning_effort=effort).get("think") == think
    assert chat(reasoning={"effort": effort}).get("think") == think


@pytest.mark.parametrize(
    ("form", "given"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json"),
        ({"type": " JSON_Object "}, "json"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}, {"type": "object"}),
        ({"type": "json_schema"}, None),
    ],
)
def test_a_response_format_becomes_format(form: object, given: object) -> None:
    assert chat(response_format=form).get("format") == given


def test_parts_become_messages_of_their_own() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]
    assert messages({"role": "user", "content": parts}) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "", "images": [PIXEL]},
    ]


@pytest.mark.parametrize("prefix", ["data:;base64,", "data:image/jpeg;base64,", "data:image/webp;base64,"])
def test_an_image_may_stand_in_a_text(prefix: str) -> None:
    (message,) = messages({"role": "user", "content": [{"type": "image_url", "image_url": prefix + PIXEL}]})
    assert message["images"] == [PIXEL]


def test_a_tool_call_is_decoded_and_its_answer_finds_its_name() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asked, answered = messages(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    )
    assert asked["content"] == ""
    assert asked["tool_calls"] == [{"id": "c1", "function": {"name": "f", "arguments": {"x": 1}}}]
    assert answered == {"role": "tool", "content": "done", "tool_call_id": "c1", "tool_name": "f"}


def test_an_answer_to_no_call_has_no_name() -> None:
    (message,) = messages({"role": "tool", "tool_call_id": "lost", "content": "done"})
    assert message["tool_name"] == ""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "[] is too short - 'messages'"),
        ({"messages": [{"role": "user"}]}, "invalid message content type: <nil>"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid message content type: float64"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "invalid message format"),
        ({"messages": [{"role": "user", "content": ["text"]}]}, "invalid message format"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "invalid message format"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid message format"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x/y.png"}]}]},
            "image URLs are not currently supported, please use base64 encoded data instead",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "invalid image input"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:;base64,!"}]}]},
            "invalid image input",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "invalid tool call arguments",
        ),
    ],
)
def test_what_openais_format_does_not_allow_is_400(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.message) == (400, message)


def test_an_unknown_effort_is_400() -> None:
    with pytest.raises(ApiError, match='invalid reasoning value: "hard"'):
        chat(reasoning_effort="hard")


def test_a_completion_is_a_generate_request() -> None:
    body = openai_request.completion(Body({"model": "m", "prompt": "p", "suffix": "s", "logprobs": 2, "stop": "x"}))
    assert (body.model, body.text("prompt"), body.text("suffix")) == ("m", "p", "s")
    assert (body.flag("logprobs"), body.get("top_logprobs")) == (True, 2)
    options = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0, "frequency_penalty": 0, "stop": ["x"]}
    assert body.get("options") == options


@pytest.mark.parametrize(("given", "expected"), [("x", "x"), (["x", "y"], ["x", "y"]), ("", [""])])
def test_an_embedding_takes_one_text_or_several(given: object, expected: object) -> None:
    assert openai_request.embedding(Body({"model": "m", "input": given})).get("input") == expected


@pytest.mark.parametrize("fields", [{}, {"input": []}, {"input": "x", "encoding_format": "int8"}])
def test_an_embedding_of_nothing_is_400(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        openai_request.embedding(Body({"model": "m", **fields}))
    assert caught.value.status == 400
