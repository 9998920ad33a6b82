"""A model without weights: the same request always gets the same answer."""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass, field
from typing import Any

from fake_script import Script

NS = 1_000_000_000
# A word with the space before it, or a single character of a script without spaces.
_TOKEN = re.compile(r"\s*[\x21-\u2fff]+|\s*.", re.DOTALL)
THOUGHT = ["Let", " me", " think."]


@dataclass
class Plan:
    """An answer before it is sent: thoughts, tokens, calls, and why it ends."""

    tokens: list[str]
    prompt_tokens: int
    reason: str = "stop"
    thoughts: list[str] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def metrics(self, load_s: float) -> dict[str, int]:
        """Return the counts and durations of the last object, in Ollama's names and nanoseconds."""
        made = len(self.tokens) + len(self.thoughts)
        return {
            "total_duration": int((0.5 + load_s) * NS),
            "load_duration": int(load_s * NS) + 1,
            "prompt_eval_count": self.prompt_tokens,
            "prompt_eval_duration": self.prompt_tokens * NS // 1000,
            "eval_count": max(1, made),
            "eval_duration": max(1, made) * NS // 100,
        }


def plan(script: Script, body: dict[str, Any]) -> Plan:
    """Decide the answer to a request in Ollama's format."""
    asked = body.get("messages") or [{"content": body.get("prompt") or ""}]
    prompt_tokens = max(1, sum(len(split(str(message.get("content") or ""))) for message in asked))
    if body.get("tools"):
        function = body["tools"][0]["function"]
        arguments = example(function.get("parameters") or {"type": "object"})
        call = {"id": "call_fake0", "function": {"index": 0, "name": function["name"], "arguments": arguments}}
        return Plan([], prompt_tokens, tool_calls=[call])
    text = script.text
    if form := body.get("format"):
        text = json.dumps(example(form) if isinstance(form, dict) else {"answer": 42})
    tokens = split(text)
    if script.tokens:
        tokens = [tokens[index % len(tokens)] for index in range(script.tokens)]
    options = body.get("options") or {}
    for stop in options.get("stop") or []:
        tokens = split("".join(tokens).partition(stop)[0])
    thoughts = THOUGHT if "thinking" in script.can(body["model"]) and body.get("think") is not False else []
    made = thoughts + tokens
    limit = options.get("num_predict", -1)
    reason = "length" if 0 <= limit < len(made) else "stop"
    made = made[:limit] if reason == "length" else made
    return Plan(made[len(thoughts) :], prompt_tokens, reason, made[: len(thoughts)])


def split(text: str) -> list[str]:
    """Cut `text` into tokens whose concatenation is `text`."""
    return _TOKEN.findall(text)


def example(schema: dict[str, Any]) -> Any:
    """Return the smallest value a JSON schema allows, for the kinds of schema tests use."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: example(part) for name, part in (schema.get("properties") or {}).items()}
    return {"array": [], "string": "text", "integer": 42, "number": 4.2, "boolean": True}.get(kind)


def embedding(text: str) -> list[float]:
    """Return eight numbers of unit length that depend on the text."""
    numbers = [float(1 + sum(text.encode()[index::8])) for index in range(8)]
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]


def packed(vector: list[float]) -> str:
    """Return a vector as OpenAI packs it: little-endian float32 in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
