"""A request's JSON body: decoded, its fields checked, and refused in Go's words when they are wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from worker.local.engine import duration
from worker.local.engine.duration import DurationInvalid
from worker.local.engine.reply import ApiError

THINK_LEVELS = ("high", "medium", "low", "max")
_JSON_KINDS = {str: "string", list: "array", dict: "object", bool: "bool", int: "number", float: "number"}
_GO_KINDS = {str: "string", bool: "bool", int: "int", float: "float64", dict: "map[string]interface {}"}


@dataclass(frozen=True)
class Shape:
    """A request type of Ollama: its Go name and the kinds of its fields; a list's kind is its Go type as text."""

    name: str
    fields: Mapping[str, type | str]

    def check(self, fields: Mapping[str, Any]) -> None:
        """Raise ApiError 400 when a field is present and not of its kind."""
        for field, kind in self.fields.items():
            value = fields.get(field)
            wanted = list if isinstance(kind, str) else kind
            if value is None or _is(value, wanted):
                continue
            target = kind if isinstance(kind, str) else _GO_KINDS[kind]
            struct = self.name.partition(".")[2]
            raise _unmarshal(value, f"Go struct field {struct}.{field} of type {target}")


_SAMPLED: dict[str, type | str] = {"model": str, "stream": bool, "options": dict, "top_logprobs": int, "logprobs": bool}
GENERATE = Shape("api.GenerateRequest", {
    **_SAMPLED, "prompt": str, "suffix": str, "system": str, "template": str, "context": "[]int", "raw": bool,
    "images": "[]api.ImageData", "shift": bool,
})  # fmt: skip
CHAT = Shape("api.ChatRequest", {**_SAMPLED, "messages": "[]api.Message", "tools": "api.Tools", "shift": bool})
MESSAGE = Shape(
    "api.ChatRequest.messages", {"role": str, "content": str, "thinking": str, "tool_calls": "[]api.ToolCall"}
)
EMBED = Shape("api.EmbedRequest", {"model": str, "truncate": bool, "dimensions": int, "options": dict})
EMBEDDINGS = Shape("api.EmbeddingRequest", {"model": str, "prompt": str, "options": dict})
SHOW = Shape("api.ShowRequest", {"model": str, "name": str, "verbose": bool})
PULL = Shape("api.PullRequest", {"model": str, "name": str, "stream": bool})
DELETE = Shape("api.DeleteRequest", {"model": str, "name": str})
_OPENAI: dict[str, type | str] = {
    "model": str, "stream": bool, "stream_options": dict, "max_tokens": int, "seed": int, "temperature": float,
    "top_p": float, "frequency_penalty": float, "presence_penalty": float,
}  # fmt: skip
OPENAI_CHAT = Shape("openai.ChatCompletionRequest", {
    **_OPENAI, "messages": "[]openai.Message", "tools": "[]api.Tool", "response_format": dict, "reasoning": dict,
    "reasoning_effort": str, "logprobs": bool, "top_logprobs": int,
})  # fmt: skip
OPENAI_COMPLETION = Shape("openai.CompletionRequest", {**_OPENAI, "prompt": str, "suffix": str, "logprobs": int})
OPENAI_EMBED = Shape("openai.EmbedRequest", {"model": str, "dimensions": int, "encoding_format": str})


class Body:
    """The decoded object of one request; null counts as absent."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Wrap fields that were checked, or made here."""
        self.fields = fields

    @classmethod
    async def read(cls, request: web.Request, shape: Shape, empty: str = "missing request body") -> Body:
        """Decode and check the body of `request`; raise ApiError 400, with the text `empty` when there is none."""
        fields = _decoded((await request.read()).decode("utf-8", "replace").lstrip(), empty)
        if fields is not None and not isinstance(fields, dict):
            raise _unmarshal(fields, f"Go value of type {shape.name}")
        shape.check(fields or {})
        return cls(fields or {})

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field."""
        value = self.fields.get(name)
        return default if value is None else value

    def text(self, name: str) -> str:
        """Return a text field, empty when absent."""
        return str(self.get(name, ""))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean field."""
        return bool(self.get(name, default))

    @property
    def model(self) -> str:
        """Return the model's name as it was sent."""
        return self.text("model")

    @property
    def keep_alive_s(self) -> float | None:
        """Return `keep_alive` in seconds, None when absent; raise ApiError 400 when it is no duration."""
        value = self.get("keep_alive")
        try:
            return None if value is None else duration.from_json(value)
        except DurationInvalid as error:
            raise ApiError(400, str(error)) from error

    @property
    def think(self) -> bool | str | None:
        """Return `think`, None when absent; raise ApiError 400 for a level that does not exist."""
        value = self.get("think")
        levels = '"high", "medium", "low", "max", true, or false'
        if value is None or isinstance(value, bool) or value in THINK_LEVELS:
            return value  # type: ignore[no-any-return]  # membership in a tuple of str does not narrow Any
        if isinstance(value, str):
            raise ApiError(400, f'invalid think value: "{value}" (must be {levels})')
        raise ApiError(400, f"think must be a boolean or string ({levels})")

    @property
    def format(self) -> Any:
        """Return `format`: None, "json" or a JSON schema; raise ApiError 500 for anything else, as Ollama does."""
        value = self.get("format", "")
        if value == "":
            return None
        if value == "json" or isinstance(value, dict):
            return value
        shown = json.dumps(json.dumps(value, separators=(",", ":")))
        raise ApiError(500, f'invalid format: {shown}; expected "json" or a valid JSON Schema object')

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the chat messages, roles in lower case; raise ApiError 400 when one is malformed."""
        messages = []
        for message in self.get("messages", []):
            if not isinstance(message, dict):
                raise _unmarshal(message, "Go struct field ChatRequest.messages of type api.Alias")
            MESSAGE.check(message)
            messages.append({**message, "role": str(message.get("role") or "").lower()})
        return messages


def _is(value: Any, kind: type) -> bool:
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _unmarshal(value: Any, target: str) -> ApiError:
    return ApiError(400, f"json: cannot unmarshal {_JSON_KINDS[type(value)]} into {target}")


def _decoded(text: str, empty: str) -> Any:
    if not text:
        raise ApiError(400, empty)
    try:
        # Like Go's decoder, only the first value counts; what follows it is not looked at.
        return json.JSONDecoder().raw_decode(text)[0]
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        wanted = "object key string" if "property name" in error.msg else "value"
        message = f"invalid character '{rest[0]}' looking for beginning of {wanted}" if rest else "unexpected EOF"
        raise ApiError(400, message) from error
