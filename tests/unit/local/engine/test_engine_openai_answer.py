from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from worker.local.engine import openai_answer
from worker.local.engine.reply import ApiError

METRICS = {"prompt_eval_count": 3, "eval_count": 2}


def piece(text: str = "", *, reason: str | None = None, **message: Any) -> dict[str, Any]:
    end = {"done": True, "done_reason": reason, **METRICS} if reason else {"done": False}
    return {"model": "m", "message": {"role": "assistant", "content": text, **message}, **end}


async def stream(*pieces: dict[str, Any] | ApiError) -> AsyncGenerator[dict[str, Any]]:
    for one in pieces:
        if isinstance(one, ApiError):
            raise one
        yield one


async def chunks(*pieces: dict[str, Any] | ApiError, usage: bool = False) -> tuple[list[dict[str, Any]], bool]:
    """Return the chunks of a translated chat, and whether it ended with [DONE]."""
    raw = b"".join([chunk async for chunk in openai_answer.chat_chunks(stream(*pieces), usage=usage)]).decode()
    events = [event.removeprefix("data: ") for event in raw.split("\n\n") if event]
    return [json.loads(event) for event in events if event != "[DONE]"], events[-1] == "[DONE]"


def call(name: str = "f") -> dict[str, Any]:
    return {"id": "c1", "function": {"index": 0, "name": name, "arguments": {"x": 1}}}


async def test_the_metrics_piece_becomes_the_chunk_with_the_reason() -> None:
    found, done = await chunks(piece("a"), piece("b"), piece(reason="stop"))
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert deltas == [{"role": "assistant", "content": "a"}, {"content": "b"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in found] == [None, None, "stop"]
    assert done


async def test_an_empty_answer_still_opens_with_the_role() -> None:
    found, done = await chunks(piece(reason="stop"))
    assert [chunk["choices"][0]["delta"] for chunk in found] == [{"role": "assistant", "content": ""}, {}]
    assert done


async def test_text_in_the_last_piece_is_not_lost() -> None:
    found, _ = await chunks(piece("a"), piece("b", reason="length"))
    assert [chunk["choices"][0]["delta"].get("content") for chunk in found] == ["a", "b", None]


async def test_usage_is_a_chunk_without_choices() -> None:
    found, _ = await chunks(piece("a"), piece(reason="stop"), usage=True)
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


async def test_a_tool_call_changes_stop_into_tool_calls() -> None:
    found, _ = await chunks(piece(tool_calls=[call()], reason="stop"))
    first, last = (chunk["choices"][0] for chunk in found)
    (made,) = first["delta"]["tool_calls"]
    assert made == {"id": "c1", "index": 0, "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    assert last["finish_reason"] == "tool_calls"


async def test_an_answer_cut_off_after_a_tool_call_keeps_its_reason() -> None:
    found, _ = await chunks(piece(tool_calls=[call()], reason="length"))
    assert found[-1]["choices"][0]["finish_reason"] == "length"


async def test_thinking_is_reasoning_and_never_in_one_chunk_with_text() -> None:
    found, _ = await chunks(piece(thinking="hm"), piece("a", thinking="so"), piece(reason="stop"))
    assert [chunk["choices"][0]["delta"] for chunk in found] == [
        {"role": "assistant", "content": "", "reasoning": "hm"},
        {"reasoning": "so"},
        {"content": "a"},
        {},
    ]


async def test_a_late_error_is_an_empty_chunk_and_no_done() -> None:
    found, done = await chunks(piece("a"), ApiError(500, "lost"))
    assert found[-1]["model"] == ""
    assert found[-1]["choices"][0]["delta"] == {"content": ""}
    assert not done


async def test_an_early_error_is_left_to_be_sent_with_its_status() -> None:
    with pytest.raises(ApiError, match="lost"):
        await chunks(ApiError(500, "lost"))


async def test_a_completion_stream_translates_errors_alike() -> None:
    pieces = stream({"model": "m", "response": "a", "done": False}, ApiError(500, "lost"))
    raw = b"".join([chunk async for chunk in openai_answer.completion_chunks(pieces, usage=False)])
    assert b"[DONE]" not in raw
    assert raw.count(b"data: ") == 2


def test_a_whole_chat_has_everything_at_once() -> None:
    answer = piece("a", thinking="hm", tool_calls=[call()], reason="stop") | {"logprobs": [{"token": "a"}]}
    body = openai_answer.chat(answer)
    (choice,) = body["choices"]
    assert choice["message"]["reasoning"] == "hm"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert choice["finish_reason"] == "tool_calls"
    assert choice["logprobs"] == {"content": [{"token": "a"}]}
    assert body["usage"]["total_tokens"] == 5


def test_a_loaded_model_is_an_empty_completion() -> None:
    body = openai_answer.completion({"model": "m", "response": "", "done": True, "done_reason": "load"})
    assert body["choices"] == [{"text": "", "index": 0, "finish_reason": "load"}]
    assert body["usage"]["total_tokens"] == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (500, "api_error"), (503, "api_error")],
)
def test_an_error_has_the_type_of_its_status(status: int, kind: str) -> None:
    response = openai_answer.error(ApiError(status, "why"))
    assert response.status == status
    body = json.loads(response.body or b"")
    assert body == {"error": {"message": "why", "type": kind, "param": None, "code": None}}


@pytest.mark.parametrize(("name", "owner"), [("a:b", "library"), ("me/a:b", "me"), ("hf.co/me/a:b", "me")])
def test_a_model_belongs_to_its_namespace(name: str, owner: str) -> None:
    body = openai_answer.model(name, "1970-01-02T00:00:00.000000000Z")
    assert body == {"id": name, "object": "model", "created": 86_400, "owned_by": owner}
