"""What is written for an extended request; contract/test_extended_openai.py compares it with the server's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker import job, openai_answer
from worker.errors import ServerLost
from worker.openai_extension import CHAT, COMPLETION

FIGURES = {"prompt_eval_count": 2, "eval_count": 3}
LAST = {"done": True, "done_reason": "stop", **FIGURES}


def request(path: str, *, stream: bool, usage: bool = False) -> job.Request:
    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "options": {}, "stream": stream}
    body["stream_options"] = {"include_usage": usage}
    return job.parse({"openai_route": path, "openai_input": body}, default_model="m")


def said(text: str = "", **more: Any) -> dict[str, Any]:
    """Return a chat's object."""
    message = {"role": "assistant", "content": text, **more.pop("message", {})}
    return {"model": "m", "created_at": "2026-01-02T03:04:05.123456789Z", "message": message, "done": False, **more}


def written(text: str, **more: Any) -> dict[str, Any]:
    """Return a completion's object."""
    return {"model": "m", "created_at": "2026-01-02T03:04:05Z", "response": text, "done": False, **more}


def streamed(path: str, *answers: dict[str, Any], usage: bool = False) -> list[Any]:
    """Return the chunks a client reads, and "[DONE]"."""
    translate = openai_answer.translator(request(path, stream=True, usage=usage))
    text = "".join(translate(json.dumps(answer)) for answer in answers)
    assert text.endswith("\n\n")
    return [
        "[DONE]" if event == "data: [DONE]" else json.loads(event.removeprefix("data: "))
        for event in text[:-2].split("\n\n")
    ]


def choices(chunks: list[Any]) -> list[Any]:
    return [chunk["choices"][0] for chunk in chunks if chunk != "[DONE]" and chunk["choices"]]


def whole(path: str, answer: dict[str, Any]) -> Any:
    return json.loads(openai_answer.translator(request(path, stream=False))(json.dumps(answer)))


def test_a_request_that_was_not_moved_is_left_alone() -> None:
    plain = job.parse({"messages": [{"role": "user", "content": "x"}]}, default_model="m")
    assert openai_answer.translator(plain)("anything at all") == "anything at all"


def test_a_chat_opens_with_the_role_and_ends_with_the_reason() -> None:
    *chunks, done = streamed(CHAT, said("a"), said("é"), said(**LAST))
    assert done == "[DONE]"
    assert [choice["delta"] for choice in choices(chunks)] == [
        {"role": "assistant", "content": "a"},
        {"content": "é"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices(chunks)] == [None, None, "stop"]
    (head,) = {tuple((k, v) for k, v in chunk.items() if k != "choices") for chunk in chunks}
    assert (
        dict(head).items()
        >= {
            "object": "chat.completion.chunk",
            "created": 1767323045,
            "model": "m",
        }.items()
    )


def test_two_answers_are_not_one() -> None:
    assert streamed(CHAT, said(**LAST))[0]["id"] != streamed(CHAT, said(**LAST))[0]["id"]


def test_an_empty_chat_still_has_a_role() -> None:
    assert [c["delta"] for c in choices(streamed(CHAT, said(**LAST)))] == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("usage", [False, True])
def test_usage_is_the_last_chunk_if_asked_for(path: str, *, usage: bool) -> None:
    last = said(**LAST) if path == CHAT else written("", **LAST)
    chunks = streamed(path, last, usage=usage)
    assert ("usage" in chunks[-2]) is usage
    if usage:
        assert chunks[-2]["choices"] == []
        assert chunks[-2]["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_every_chunk_of_a_completion_has_a_usage_of_zeros() -> None:
    first, *_ = streamed(COMPLETION, written("a"), written("", **LAST), usage=True)
    assert first["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert (first["object"], first["choices"]) == (
        "text_completion",
        [{"text": "a", "index": 0, "finish_reason": None}],
    )


CALLS = [
    {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": "é"}}},
    {"function": {"name": "g", "arguments": {}}},
]
MADE = [
    {"id": "c1", "index": 0, "type": "function", "function": {"name": "f", "arguments": '{"a":"é"}'}},
    {"id": "", "index": 0, "type": "function", "function": {"name": "g", "arguments": "{}"}},
]


@pytest.mark.parametrize(("reason", "told"), [("stop", "tool_calls"), ("length", "length")])
def test_a_call_is_a_delta_and_the_reason(reason: str, told: str) -> None:
    made = choices(streamed(CHAT, said(message={"tool_calls": CALLS}), said(**LAST | {"done_reason": reason})))
    assert made[0]["delta"]["tool_calls"] == MADE
    assert made[-1]["finish_reason"] == told
    answer = whole(CHAT, said("x", message={"tool_calls": CALLS}, **LAST | {"done_reason": reason}))
    assert answer["choices"][0]["message"]["tool_calls"] == MADE
    assert answer["choices"][0]["finish_reason"] == told


def test_thoughts_come_before_what_is_said() -> None:
    thought = said(message={"thinking": "hm"})
    mixed = said("so", message={"thinking": "yes"}, logprobs=[{"token": "so"}])
    first, second, third, _ = choices(streamed(CHAT, thought, mixed, said(**LAST)))
    assert first["delta"] == {"role": "assistant", "content": "", "reasoning": "hm"}
    assert (second["delta"], third["delta"]) == ({"reasoning": "yes"}, {"content": "so"})
    assert ("logprobs" in second, "logprobs" in third) == (True, False)
    assert whole(CHAT, mixed | LAST)["choices"][0]["message"] == {
        "role": "assistant",
        "content": "so",
        "reasoning": "yes",
    }


def test_a_whole_answer_is_one_object() -> None:
    chat = whole(CHAT, said("a", logprobs=[{"token": "a"}], **LAST))
    assert chat["object"] == "chat.completion"
    assert chat["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert chat["choices"][0]["logprobs"] == {"content": [{"token": "a"}]}
    text = whole(COMPLETION, written("a", **LAST))
    assert (text["object"], text["choices"]) == (
        "text_completion",
        [{"text": "a", "index": 0, "finish_reason": "stop"}],
    )


def test_half_a_character_is_made_whole() -> None:
    translate = openai_answer.translator(request(CHAT, stream=True))
    assert translate(r'{"model":"m","message":{"role":"assistant","content":"a\ud83d"},"done":false}').encode()


@pytest.mark.parametrize("frame", ["", "[]", "3", '{"model": "m"}', '{"done": true}', '{"model": "m", "message": 3}'])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_answer_is_the_servers_fault(frame: str, *, stream: bool) -> None:
    with pytest.raises(ServerLost, match="cannot be translated"):
        openai_answer.translator(request(CHAT, stream=stream))(frame)
