from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import job
from worker.errors import JobError, JobInvalid
from worker.job import Request, Shape
from worker.openai_extension import CHAT, COMPLETION
from worker.routes import Framing

HI = [{"role": "user", "content": "hi"}]
PNG = "data:image/png;base64,aGk="
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def parse(path: str = CHAT, **body: Any) -> Request:
    return job.parse({"openai_route": path, "openai_input": body}, default_model="m")


def native(path: str = CHAT, **body: Any) -> dict[str, Any]:
    """Return the native body of an extended one."""
    request = parse(path, **{"options": {}, **({"messages": HI} if path == CHAT else {"prompt": "p"}), **body})
    return dict(json.loads(request.body or ""))


def refused(path: str = CHAT, **body: Any) -> JobInvalid:
    with pytest.raises(JobInvalid) as caught:
        native(path, **body)
    return caught.value


@pytest.mark.parametrize("field", [{"options": {"top_k": 3}}, {"num_ctx": 512}, {"keep_alive": 0}])
@pytest.mark.parametrize(("path", "target"), [(CHAT, "/api/chat"), (COMPLETION, "/api/generate")])
def test_ollamas_fields_move_the_request_to_the_native_route(path: str, target: str, field: dict[str, Any]) -> None:
    request = parse(path, messages=HI, prompt="p", stream=True, **field)
    assert (request.shape, request.route.path, request.answered.path) == (Shape.OPENAI, target, path)
    assert (request.framing, request.answered.framing) == (Framing.NDJSON, Framing.SSE)
    assert (request.stream, request.model) == (True, "m")


def test_without_them_nothing_moves() -> None:
    for body in ({}, {"options": None, "num_ctx": None, "keep_alive": None}):
        request = parse(messages=HI, **body)
        assert (request.route.path, request.asked) == (CHAT, None)
    assert parse("/v1/embeddings", input="x", options={"num_ctx": 1}).asked is None


def test_options_win_over_openais_fields_and_those_over_the_routes_defaults() -> None:
    assert native()["options"] == {"temperature": 1.0, "top_p": 1.0}
    given_ = {"temperature": 0.2, "top_p": 0.3, "seed": 4, "max_tokens": 5, "frequency_penalty": 6, "stop": "s"}
    assert native(**given_)["options"] == {
        "temperature": 0.2,
        "top_p": 0.3,
        "seed": 4,
        "num_predict": 5,
        "frequency_penalty": 6,
        "stop": ["s"],
    }
    assert native(seed=4, num_ctx=7, stop=["s"], options={"seed": 8, "num_ctx": 9})["options"] == {
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 8,
        "stop": ["s"],
        "num_ctx": 9,
    }
    assert native(keep_alive="5m")["keep_alive"] == "5m"


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"reasoning_effort": "none"}, {"think": False}),
        ({"reasoning_effort": "minimal"}, {"think": "low"}),
        ({"reasoning": {"effort": "xhigh"}, "reasoning_effort": "low"}, {"think": "max"}),
        ({"response_format": {"type": "json_object"}}, {"format": "json"}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}}, {"format": {"a": 1}}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_schema"}}, {}),
        ({"tools": [{}], "logprobs": True}, {"tools": [{}], "logprobs": True}),
        ({"top_logprobs": 2}, {"top_logprobs": 2}),
        ({"reasoning_effort": "", "user": "u", "n": 2}, {}),
    ],
)
def test_each_field_of_a_chat_has_its_native_name(asked: dict[str, Any], sent: dict[str, Any]) -> None:
    made = native(**asked)
    assert {name: made[name] for name in made.keys() - {"model", "stream", "options", "messages"}} == sent


def test_a_completion_has_its_prompt() -> None:
    made = native(COMPLETION, suffix="end", logprobs=3)
    assert {name: made[name] for name in ("prompt", "suffix", "logprobs", "top_logprobs")} == {
        "prompt": "p",
        "suffix": "end",
        "logprobs": True,
        "top_logprobs": 3,
    }
    assert not {"logprobs", "top_logprobs", "suffix"} & native(COMPLETION, logprobs=0).keys()


def test_each_part_of_a_message_is_one_message() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "image_url", "image_url": "data:;base64,aGk="},
        {"type": "input_audio", "input_audio": {"data": "aGk="}},
    ]
    assert native(messages=[{"role": "user", "content": parts}])["messages"] == [
        {"role": "user", "content": "look"},
        *[{"role": "user", "content": "", "images": ["aGk="]}] * 3,
    ]


def test_a_tools_answer_names_the_function_that_was_called() -> None:
    later = {**CALL, "function": {"name": "g", "arguments": "{}"}}
    made = native(
        messages=[
            *HI,
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [CALL, later]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "tool", "tool_call_id": "c2", "name": "own", "content": "4"},
            {"role": "tool", "content": "5"},
        ]
    )["messages"]
    calls = [
        {"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "c1", "function": {"name": "g", "arguments": {}}},
    ]
    assert made[1:] == [
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "tool_name": "g"},
        {"role": "tool", "content": "4", "tool_call_id": "c2", "tool_name": "own"},
        {"role": "tool", "content": "5"},
    ]


@pytest.mark.parametrize("streams", [{}, {"stream": True}, {"stream": None}])
def test_the_native_route_is_told_whether_to_stream(streams: dict[str, Any]) -> None:
    assert native(**streams)["stream"] is bool(streams.get("stream"))


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [({"include_usage": True}, True), ({"include_usage": False}, False), ({}, False), (None, False), ("x", False)],
)
def test_usage_is_asked_for(asked: Any, *, wanted: bool) -> None:
    assert parse(messages=HI, options={}, stream_options=asked).usage is wanted


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"options": 3}, "'options' must be an object, got a number"),
        ({"messages": []}, "'messages' is empty"),
        ({"messages": "hi"}, "'messages' must be a list, got a string"),
        ({"messages": ["hi"]}, "a message must be an object, got a string"),
        ({"messages": [{"role": "user"}]}, "the content of a message must be text or a list of parts, got null"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "a part of a message must have the type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a part of a message must have the type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}]}, "data URL"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": f"{PNG}!"}]}]}, "not base64"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "not base64"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, "a tool call needs"),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "'tool_calls' must be a list"),
        ({"reasoning_effort": "much"}, "unknown reasoning effort 'much'"),
        ({"reasoning_effort": ["x"]}, "unknown reasoning effort"),
    ],
)
def test_what_is_wrong_is_said(body: dict[str, Any], words: str) -> None:
    assert words in refused(**body).message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "url", "function", "id"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
NAMES = ["messages", "options", "stop", "reasoning", "response_format", "stream_options", "tools", "logprobs", "prompt"]


@settings(deadline=None, database=None, max_examples=400)
@given(path=st.sampled_from([CHAT, COMPLETION]), body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5))
def test_any_body_is_a_request_or_a_sentence(path: str, body: dict[str, Any]) -> None:
    try:
        request = parse(path, **{**body, "num_ctx": 64})
    except JobError as error:
        request, status, told = None, error.status, error.sentence()
    if request is None:
        assert (status, bool(told)) == (400, True)
        return
    assert request.asked is not None
    assert json.loads(request.body or "")["options"]["num_ctx"] == (body.get("options") or {}).get("num_ctx", 64)
