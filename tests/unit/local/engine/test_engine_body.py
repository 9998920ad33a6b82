from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request

from worker.local.engine import body as shapes
from worker.local.engine.body import Body
from worker.local.engine.reply import ApiError


def request(raw: bytes) -> Request:
    made = make_mocked_request("POST", "/")
    made._read_bytes = raw
    return made


async def read(raw: str | bytes, shape: shapes.Shape = shapes.CHAT, **more: Any) -> Body:
    return await Body.read(request(raw.encode() if isinstance(raw, str) else raw), shape, **more)


async def test_fields_are_read_and_null_counts_as_absent() -> None:
    body = await read('{"model": "m", "stream": false, "tools": null, "extra": 1}')
    assert body.model == "m"
    assert body.flag("stream", default=True) is False
    assert body.flag("absent", default=True) is True
    assert body.get("tools", []) == []
    assert body.text("absent") == ""
    assert body.get("extra") == 1


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("", "missing request body"),
        (" \n", "missing request body"),
        ("{", "unexpected EOF"),
        ('{"model":', "unexpected EOF"),
        ("{x", "invalid character 'x' looking for beginning of object key string"),
        ("xyz", "invalid character 'x' looking for beginning of value"),
        ("[1]", "json: cannot unmarshal array into Go value of type api.ChatRequest"),
        ('"text"', "json: cannot unmarshal string into Go value of type api.ChatRequest"),
        ("5", "json: cannot unmarshal number into Go value of type api.ChatRequest"),
        ('{"model": 5}', "json: cannot unmarshal number into Go struct field ChatRequest.model of type string"),
        ('{"stream": "no"}', "json: cannot unmarshal string into Go struct field ChatRequest.stream of type bool"),
        (
            '{"messages": "x"}',
            "json: cannot unmarshal string into Go struct field ChatRequest.messages of type []api.Message",
        ),
        (
            '{"options": []}',
            "json: cannot unmarshal array into Go struct field ChatRequest.options of type map[string]interface {}",
        ),
        (
            '{"top_logprobs": true}',
            "json: cannot unmarshal bool into Go struct field ChatRequest.top_logprobs of type int",
        ),
        (
            '{"top_logprobs": 1.5}',
            "json: cannot unmarshal number into Go struct field ChatRequest.top_logprobs of type int",
        ),
    ],
)
async def test_a_wrong_body_is_refused_in_gos_words(raw: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        await read(raw)
    assert (caught.value.status, caught.value.message) == (400, message)


async def test_an_empty_body_has_other_words_on_other_routes() -> None:
    with pytest.raises(ApiError, match="EOF"):
        await read("", shapes.OPENAI_CHAT, empty="EOF")


@pytest.mark.parametrize("raw", ["null", "{}", "{} what follows is not looked at", ' {"model": null}'])
async def test_what_go_forgives(raw: str) -> None:
    assert (await read(raw)).model == ""


async def test_bytes_that_are_no_utf8_do_no_harm() -> None:
    assert (await read(b'{"model": "\xff"}')).model == "\N{REPLACEMENT CHARACTER}"


async def test_a_float_field_takes_whole_numbers() -> None:
    body = await read('{"temperature": 1}', shapes.OPENAI_CHAT)
    assert body.get("temperature") == 1


@pytest.mark.parametrize(
    ("think", "given"), [(None, None), (True, True), (False, False), ("high", "high"), ("max", "max")]
)
def test_think_is_a_truth_or_a_level(think: object, given: object) -> None:
    assert Body({"think": think}).think == given


@pytest.mark.parametrize("think", ["very", 5, [True]])
def test_another_think_is_refused(think: object) -> None:
    with pytest.raises(ApiError, match='"high", "medium", "low", "max", true, or false') as caught:
        _ = Body({"think": think}).think
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("value", "given"), [(None, None), ("", None), ("json", "json"), ({"type": "object"}, {"type": "object"})]
)
def test_format_is_json_or_a_schema(value: object, given: object) -> None:
    assert Body({"format": value}).format == given


@pytest.mark.parametrize("value", ["xml", [1], 5, True])
def test_another_format_is_500_as_in_ollama(value: object) -> None:
    with pytest.raises(ApiError) as caught:
        _ = Body({"format": value}).format
    shown = json.dumps(json.dumps(value, separators=(",", ":")))
    assert caught.value.status == 500
    assert caught.value.message == f'invalid format: {shown}; expected "json" or a valid JSON Schema object'


def test_keep_alive_is_none_when_absent() -> None:
    assert Body({}).keep_alive_s is None
    assert Body({"keep_alive": "5m"}).keep_alive_s == 300
    with pytest.raises(ApiError, match="missing unit") as caught:
        _ = Body({"keep_alive": "-1"}).keep_alive_s
    assert caught.value.status == 400


def test_roles_come_in_lower_case() -> None:
    messages = [{"role": "USER", "content": "x"}, {"content": "y"}, {"role": None}]
    assert [message["role"] for message in Body({"messages": messages}).messages] == ["user", "", ""]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("x", "cannot unmarshal string into Go struct field ChatRequest.messages of type api.Alias"),
        ({"content": 5}, "cannot unmarshal number into Go struct field ChatRequest.messages.content of type string"),
        (
            {"tool_calls": {}},
            "cannot unmarshal object into Go struct field ChatRequest.messages.tool_calls of type []api.ToolCall",
        ),
    ],
)
def test_a_malformed_message_is_refused(message: object, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        _ = Body({"messages": [message]}).messages
    assert (caught.value.status, caught.value.message) == (400, f"json: {text}")
