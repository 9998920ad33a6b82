"""Anthropic's messages as Ollama serves them: what is asked, and named events or one object in answer."""

from __future__ import annotations

import json
from typing import Any

from fake_model import Plan
from fake_request import Refused
from fake_wire import dumps


def checked(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body in Ollama's format, as far as the plan looks at it; raise Refused for what is missing."""
    if not body.get("model"):
        raise Refused(400, "model is required")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] <= 0:
        raise Refused(400, "max_tokens is required and must be positive")
    if not body.get("messages"):
        raise Refused(400, "messages is required")
    options = {"num_predict": body["max_tokens"], "stop": body.get("stop_sequences") or []}
    tools = [{"function": {**tool, "parameters": tool.get("input_schema")}} for tool in body.get("tools") or []]
    think = (body.get("thinking") or {}).get("type") == "enabled"
    messages = [_flat(message) for message in body["messages"]]
    stream = bool(body.get("stream"))
    return {**body, "options": options, "tools": tools, "think": think, "messages": messages, "stream": stream}


class Anthropic:
    """The wire of one answer: blocks of content, each opened, filled and closed."""

    content_type = "text/event-stream"
    whole_type = "application/json"

    def __init__(self, model: str) -> None:
        self.head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model}
        self.open = ""
        self.blocks = 0

    def piece(self, text: str, thinking: str = "") -> bytes:
        kind = "thinking" if thinking else "text"
        before = self._start() if not self.blocks else b""
        if self.open != kind:
            before += self._close() + self._begin({"type": kind, kind: ""})
            self.open = kind
        return before + self._delta({"type": f"{kind}_delta", kind: thinking or text})

    def end(self, plan: Plan, metrics: dict[str, int]) -> bytes:
        events = (self._start() if not self.blocks else b"") + self._close()
        for call in plan.tool_calls:
            events += self._begin({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}})
            given = json.dumps(call["function"]["arguments"])
            events += self._delta({"type": "input_json_delta", "partial_json": given}) + self._stop()
        last = {"delta": {"stop_reason": _reason(plan)}, "usage": _usage(metrics)}
        return events + _event("message_delta", **last) + _event("message_stop")

    def error(self, _: str) -> bytes:
        # Ollama loses the text of a late error on this API too, and sends no message_stop.
        return self._start() if not self.blocks else b""

    def whole(self, plan: Plan, metrics: dict[str, int]) -> bytes:
        texts = {"thinking": "".join(plan.thoughts), "text": "".join(plan.tokens)}
        content: list[dict[str, Any]] = [{"type": kind, kind: text} for kind, text in texts.items() if text]
        for call in plan.tool_calls:
            function = call["function"]
            named = {"id": call["id"], "name": function["name"], "input": function["arguments"]}
            content.append({"type": "tool_use", **named})
        more = {"content": content, "stop_reason": _reason(plan), "usage": _usage(metrics)}
        return dumps(self.head | more)

    def _start(self) -> bytes:
        usage = {"input_tokens": 1, "output_tokens": 0}
        return _event("message_start", message=self.head | {"content": [], "usage": usage})

    def _begin(self, block: dict[str, Any]) -> bytes:
        self.blocks += 1
        return _event("content_block_start", index=self.blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self.blocks - 1, delta=delta)

    def _stop(self) -> bytes:
        return _event("content_block_stop", index=self.blocks - 1)

    def _close(self) -> bytes:
        was, self.open = self.open, ""
        return self._stop() if was else b""


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    images = [part["source"] for part in parts if part.get("type") == "image"]
    return {**message, "content": "".join(part.get("text", "") for part in parts), "images": images}


def _event(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: ".encode() + dumps({"type": name, **data}) + b"\n\n"


def _reason(plan: Plan) -> str:
    return "tool_use" if plan.tool_calls else {"stop": "end_turn", "length": "max_tokens"}[plan.reason]


def _usage(metrics: dict[str, int]) -> dict[str, int]:
    return {"input_tokens": metrics["prompt_eval_count"], "output_tokens": metrics["eval_count"]}
