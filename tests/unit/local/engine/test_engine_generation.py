from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from worker.local.engine import generation
from worker.local.engine.generation import CUT_OFF, MAX_REPEATS, Piece
from worker.local.engine.reply import ApiError

TIMINGS = {"cache_n": 4, "prompt_n": 3, "prompt_ms": 2.5, "predicted_n": 2, "predicted_ms": 1.25}
METRICS = {"prompt_eval_count": 7, "prompt_eval_duration": 2_500_000, "eval_count": 2, "eval_duration": 1_250_000}


class Replay:
    """A runner whose events were written down; it keeps what it was sent."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events_given = events
        self.sent: tuple[str, dict[str, Any]] = ("", {})

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        self.sent = (path, body)
        for event in self.events_given:
            yield event


def delta(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    timings = {"timings": TIMINGS} if reason else {}
    return {"choices": [{"delta": delta, "finish_reason": reason}], **timings}


async def complete(*events: dict[str, Any]) -> list[Piece]:
    return [piece async for piece in generation.complete(Replay(*events), {"prompt": "x"})]  # type: ignore[arg-type]


async def chat(*events: dict[str, Any]) -> list[Piece]:
    return [piece async for piece in generation.chat(Replay(*events), {"messages": []})]  # type: ignore[arg-type]


async def test_a_completion_ends_with_reason_and_metrics() -> None:
    end = {"content": "", "stop": True, "stop_type": "eos", "timings": TIMINGS}
    assert await complete({"content": "a"}, {"content": ""}, {"content": "b"}, end) == [
        Piece("a"),
        Piece("b"),
        Piece("", reason="stop", metrics=METRICS),
    ]


@pytest.mark.parametrize(("kind", "reason"), [("limit", "length"), ("eos", "stop"), ("word", "stop")])
async def test_only_a_limit_is_length(kind: str, reason: str) -> None:
    (piece,) = await complete({"content": "", "stop": True, "stop_type": kind})
    assert piece.reason == reason


async def test_both_calls_stream_with_the_prompt_cache_on() -> None:
    runner = Replay({"content": "", "stop": True})
    _ = [piece async for piece in generation.complete(runner, {"prompt": "x"})]  # type: ignore[arg-type]
    assert runner.sent == ("/completion", {"prompt": "x", "stream": True, "cache_prompt": True})


async def test_a_model_that_repeats_itself_is_given_up() -> None:
    pieces = await complete(*[{"content": " a"} for _ in range(MAX_REPEATS + 10)])
    assert len(pieces) == MAX_REPEATS + 1
    assert all(piece.reason is None for piece in pieces)


async def test_an_answer_without_an_end_is_an_error() -> None:
    with pytest.raises(ApiError, match=CUT_OFF):
        await complete({"content": "a"})
    with pytest.raises(ApiError, match=CUT_OFF):
        await chat(delta(content="a"))


async def test_an_error_event_is_an_error() -> None:
    with pytest.raises(ApiError, match=r"llama-server chat error: .*out of memory"):
        await chat(delta(content="a"), {"error": {"message": "out of memory"}})


async def test_a_chat_ends_with_reason_and_metrics() -> None:
    events = [delta(role="assistant", content=None), delta(content="a"), delta("length"), {"choices": []}]
    assert await chat(*events) == [Piece("a"), Piece("", reason="length", metrics=METRICS)]


async def test_thinking_is_kept_apart() -> None:
    pieces = await chat(delta(reasoning_content="hm"), delta(content="a"), delta("stop"))
    assert [(piece.thinking, piece.text) for piece in pieces] == [("hm", ""), ("", "a"), ("", "")]


def part(index: int, name: str = "", arguments: str = "", identity: str = "") -> dict[str, Any]:
    return {"index": index, "id": identity, "function": {"name": name, "arguments": arguments}}


async def test_the_parts_of_tool_calls_are_joined() -> None:
    pieces = await chat(
        delta(tool_calls=[part(1, "g", "{}", "c1"), part(0, "f", '{"x"', "c0")]),
        delta(tool_calls=[part(0, arguments=": 1}")]),
        delta("tool_calls"),
    )
    (last,) = pieces
    assert last.reason == "stop"
    assert last.tool_calls == [
        {"id": "c0", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
        {"id": "c1", "function": {"index": 1, "name": "g", "arguments": {}}},
    ]


async def test_arguments_that_are_no_json_are_an_error() -> None:
    with pytest.raises(ApiError, match='invalid tool call arguments for "f"'):
        await chat(delta(tool_calls=[part(0, "f", "{x")]), delta("tool_calls"))


async def test_logprobs_carry_the_bytes_of_their_tokens() -> None:
    top = {"token": "é", "logprob": -0.5, "id": 7}
    event = {"content": "é", "completion_probabilities": [{**top, "top_logprobs": [top]}]}
    first, _ = await complete(event, {"content": "", "stop": True})
    shown = {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]}
    assert first.logprobs == [{**shown, "top_logprobs": [shown]}]
