"""One answer being generated: llama-server's events turned into pieces, the last one with reason and timings."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from worker.local.engine.reply import ApiError
from worker.local.engine.runner import Runner

# Ollama gives up on a model that repeats one token this often.
MAX_REPEATS = 30
CUT_OFF = "an error was encountered while running the model: unexpected EOF"


@dataclass
class Piece:
    """A part of an answer. `reason` is None until the last piece: `stop` or `length`; durations in nanoseconds."""

    text: str = ""
    thinking: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    metrics: dict[str, int] = field(default_factory=dict)


async def complete(runner: Runner, body: dict[str, Any]) -> AsyncGenerator[Piece]:
    """Generate from a prompt that is already text: llama-server's /completion."""
    last, repeats, ended = "", 0, False
    async with aclosing(runner.events("/completion", {**body, "stream": True, "cache_prompt": True})) as events:
        async for event in events:
            _raise_for(event)
            text = event.get("content", "")
            repeats = repeats + 1 if text.strip() == last else 0
            last = text.strip()
            if repeats > MAX_REPEATS:
                return
            if event.get("stop"):
                ended = True
                reason = "length" if event.get("stop_type") == "limit" else "stop"
                yield Piece(text, reason=reason, metrics=_metrics(event))
            elif text:
                yield Piece(text, logprobs=_logprobs(event.get("completion_probabilities")))
    if not ended:
        raise ApiError(500, CUT_OFF)


async def chat(runner: Runner, body: dict[str, Any]) -> AsyncGenerator[Piece]:
    """Generate from messages by the model's own chat template: llama-server's /v1/chat/completions."""
    calls: dict[int, dict[str, str]] = {}
    ended = False
    request = {**body, "stream": True, "cache_prompt": True}
    async with aclosing(runner.events("/v1/chat/completions", request)) as events:
        async for event in events:
            _raise_for(event)
            if not event.get("choices"):
                continue
            choice = event["choices"][0]
            piece = Piece(choice["delta"].get("content") or "", choice["delta"].get("reasoning_content") or "")
            piece.logprobs = _logprobs((choice.get("logprobs") or {}).get("content"))
            _collect(calls, choice["delta"].get("tool_calls") or [])
            if choice.get("finish_reason"):
                ended = True
                piece.reason = "length" if choice["finish_reason"] == "length" else "stop"
                piece.metrics = _metrics(event)
                piece.tool_calls = [_tool_call(index, call) for index, call in sorted(calls.items())]
                yield piece
            elif piece.text or piece.thinking or piece.logprobs:
                yield piece
    if not ended:
        raise ApiError(500, CUT_OFF)


def _collect(calls: dict[int, dict[str, str]], parts: list[dict[str, Any]]) -> None:
    """Add the parts of tool calls in one event to what came before."""
    for part in parts:
        call = calls.setdefault(part.get("index", 0), {"id": "", "name": "", "arguments": ""})
        call["id"] += part.get("id") or ""
        call["name"] += part["function"].get("name") or ""
        call["arguments"] += part["function"].get("arguments") or ""


def _raise_for(event: dict[str, Any]) -> None:
    if event.get("error"):
        raise ApiError(500, f"llama-server chat error: {json.dumps(event['error'])}")


def _metrics(event: dict[str, Any]) -> dict[str, int]:
    timings = event.get("timings") or {}
    return {
        "prompt_eval_count": timings.get("cache_n", 0) + timings.get("prompt_n", 0),
        "prompt_eval_duration": int(timings.get("prompt_ms", 0) * 1e6),
        "eval_count": timings.get("predicted_n", 0),
        "eval_duration": int(timings.get("predicted_ms", 0) * 1e6),
    }


def _logprobs(probabilities: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [
        _logprob(entry) | {"top_logprobs": list(map(_logprob, entry.get("top_logprobs") or []))}
        for entry in probabilities or []
    ]


def _logprob(entry: dict[str, Any]) -> dict[str, Any]:
    return {"token": entry["token"], "logprob": entry["logprob"], "bytes": list(entry["token"].encode())}


def _tool_call(index: int, call: dict[str, str]) -> dict[str, Any]:
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except json.JSONDecodeError as error:
        raise ApiError(
            500, f'llama-server returned invalid tool call arguments for "{call["name"]}": {error}'
        ) from error
    return {"id": call["id"], "function": {"index": index, "name": call["name"], "arguments": arguments}}
