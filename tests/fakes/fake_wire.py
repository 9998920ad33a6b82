"""The four ways an answer is written: Ollama's two and OpenAI's two, streamed or whole."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from fake_model import Plan

DONE = b"data: [DONE]\n\n"


def dumps(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("utf-8", "replace")


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


class Native:
    """NDJSON: /api/chat with `message`, /api/generate with `response`."""

    content_type = "application/x-ndjson"
    whole_type = "application/json; charset=utf-8"

    def __init__(self, model: str, *, chat: bool) -> None:
        self.model = model
        self.chat = chat

    def content(self, text: str, thinking: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        if not self.chat:
            return {"response": text} | ({"thinking": thinking} if thinking else {})
        message: dict[str, Any] = {"role": "assistant", "content": text}
        message |= {"thinking": thinking} if thinking else {}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def head(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "created_at": now(), **content, "done": False}

    def piece(self, text: str, thinking: str = "") -> bytes:
        return dumps(self.head(self.content(text, thinking))) + b"\n"

    def end(self, plan: Plan, metrics: dict[str, int]) -> bytes:
        return dumps(self._last("", plan, metrics)) + b"\n"

    def error(self, text: str) -> bytes:
        return dumps({"error": text}) + b"\n"

    def whole(self, plan: Plan, metrics: dict[str, int]) -> bytes:
        return dumps(self._last("".join(plan.tokens), plan, metrics, "".join(plan.thoughts)))

    def nothing(self, reason: str) -> bytes:
        """The answer to a request that only loads or unloads."""
        return dumps(self.head(self.content("")) | {"done": True, "done_reason": reason})

    def _last(self, text: str, plan: Plan, metrics: dict[str, int], thinking: str = "") -> dict[str, Any]:
        context = {} if self.chat else {"context": list(range(metrics["eval_count"]))}
        content = self.content(text, thinking, plan.tool_calls)
        return self.head(content) | {"done": True, "done_reason": plan.reason, **metrics, **context}


class OpenAi:
    """Server-sent events: /v1/chat/completions with `delta`, /v1/completions with `text`."""

    content_type = "text/event-stream"
    whole_type = "application/json"

    def __init__(self, model: str, *, chat: bool, usage: bool) -> None:
        self.chat = chat
        self.usage = usage
        self.first = True
        kind = ("chatcmpl-1", "chat.completion") if chat else ("cmpl-1", "text_completion")
        self.head = {"id": kind[0], "object": kind[1], "created": 1, "model": model, "system_fingerprint": "fp_ollama"}

    def piece(self, text: str, thinking: str = "") -> bytes:
        return self._event(self._choice(text, thinking))

    def end(self, plan: Plan, metrics: dict[str, int]) -> bytes:
        events = b""
        if self.chat and (self.first or plan.tool_calls):
            events += self._event(self._choice("", calls=plan.tool_calls))
        last = {"index": 0, "delta": {}} if self.chat else {"text": "", "index": 0}
        events += self._event(last | {"finish_reason": self._reason(plan)})
        if self.usage:
            events += b"data: " + dumps(self._chunk() | {"choices": [], "usage": _usage(metrics)}) + b"\n\n"
        return events + DONE

    def error(self, _: str) -> bytes:
        # Ollama loses the text of a late error on this API: what is left is an empty chunk and no [DONE].
        self.head["model"] = ""
        return self._event(self._choice(""))

    def whole(self, plan: Plan, metrics: dict[str, int]) -> bytes:
        text = "".join(plan.tokens)
        choice: dict[str, Any] = {"text": text, "index": 0}
        if self.chat:
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text} | _extras(plan.tool_calls, plan.thoughts),
            }
        choice["finish_reason"] = self._reason(plan)
        return dumps(self.head | {"choices": [choice], "usage": _usage(metrics)})

    def nothing(self, reason: str) -> bytes:
        zero = {"prompt_eval_count": 0, "eval_count": 0}
        return dumps(
            self.head | {"choices": [{"text": "", "index": 0, "finish_reason": reason}], "usage": _usage(zero)}
        )

    def _chunk(self) -> dict[str, Any]:
        return self.head | ({"object": "chat.completion.chunk"} if self.chat else {})

    def _event(self, choice: dict[str, Any]) -> bytes:
        zero = {"usage": _usage({"prompt_eval_count": 0, "eval_count": 0})} if self.usage and not self.chat else {}
        return b"data: " + dumps(self._chunk() | zero | {"choices": [choice]}) + b"\n\n"

    def _choice(self, text: str, thinking: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        if not self.chat:
            return {"text": text, "index": 0, "finish_reason": None}
        role = {"role": "assistant"} if self.first else {}
        self.first = False
        delta = role | {"content": text} | _extras(calls or [], [thinking] if thinking else [])
        return {"index": 0, "delta": delta, "finish_reason": None}

    def _reason(self, plan: Plan) -> str:
        return "tool_calls" if plan.tool_calls and self.chat else plan.reason


def _extras(calls: list[dict[str, Any]], thoughts: list[str]) -> dict[str, Any]:
    made = [
        {
            "id": call["id"],
            "index": call["function"]["index"],
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": json.dumps(call["function"]["arguments"])},
        }
        for call in calls
    ]
    return ({"reasoning": "".join(thoughts)} if thoughts else {}) | ({"tool_calls": made} if made else {})


def _usage(metrics: dict[str, int]) -> dict[str, int]:
    asked, answered = metrics["prompt_eval_count"], metrics["eval_count"]
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}
