"""OpenAI's request bodies translated into Ollama's, by Ollama's own rules."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from worker.local.engine.body import Body
from worker.local.engine.reply import ApiError

IMAGE_PREFIXES = ("data:;base64,", *(f"data:image/{kind};base64," for kind in ("jpeg", "jpg", "png", "webp")))
EFFORTS: dict[str, Any] = {
    "": None, "none": False, "minimal": "low", "low": "low", "medium": "medium", "high": "high", "max": "max",
    "xhigh": "max", "ultra": "max",
}  # fmt: skip
_GO_TYPES = {type(None): "<nil>", int: "float64", float: "float64", bool: "bool", dict: "map[string]interface {}"}


def chat(body: Body) -> Body:
    """Translate a /v1/chat/completions body; raise ApiError 400 for what OpenAI's format does not allow."""
    messages = body.get("messages", [])
    if not messages:
        raise ApiError(400, "[] is too short - 'messages'")
    native: dict[str, Any] = {
        "model": body.model,
        "messages": [part for message in messages for part in _messages(Body(message), messages)],
        "options": _options(body, ("frequency_penalty", "presence_penalty")),
        "tools": body.get("tools", []),
        "think": _think(body),
        "format": _format(body.get("response_format", {})),
        "logprobs": body.flag("logprobs"),
        "top_logprobs": body.get("top_logprobs", 0),
    }
    return Body(native)


def completion(body: Body) -> Body:
    """Translate a /v1/completions body."""
    options = {"frequency_penalty": 0, "presence_penalty": 0}
    options |= _options(body, ("frequency_penalty", "presence_penalty"))
    logprobs = body.get("logprobs", 0)
    native = {
        "model": body.model,
        "prompt": body.text("prompt"),
        "suffix": body.text("suffix"),
        "options": options,
        "logprobs": logprobs > 0,
        "top_logprobs": logprobs,
    }
    return Body(native)


def embedding(body: Body) -> Body:
    """Translate a /v1/embeddings body."""
    form = body.text("encoding_format")
    if form.lower() not in ("", "float", "base64"):
        raise ApiError(400, f"Invalid value for 'encoding_format' = {form}. Supported values: ['float', 'base64'].")
    value = body.fields.get("input")
    if value is None or value == []:
        raise ApiError(400, "invalid input")
    native = {"model": body.model, "input": [""] if value == "" else value, "dimensions": body.get("dimensions", 0)}
    return Body(native)


def _options(body: Body, penalties: tuple[str, ...]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "temperature": body.get("temperature", 1.0),
        "top_p": body.get("top_p", 1.0) or 1.0,
    }
    for name in (*penalties, "seed"):
        if (value := body.get(name)) is not None:
            options[name] = value
    if (limit := body.get("max_tokens")) is not None:
        options["num_predict"] = limit
    stop = body.fields.get("stop")
    if isinstance(stop, str):
        options["stop"] = [stop]
    elif isinstance(stop, list):
        options["stop"] = [text for text in stop if isinstance(text, str)]
    return options


def _think(body: Body) -> Any:
    effort = body.get("reasoning", {}).get("effort") or body.text("reasoning_effort")
    if effort not in EFFORTS:
        allowed = ", ".join(f'"{name}"' for name in ("minimal", "low", "medium", "high", "xhigh", "ultra", "max"))
        raise ApiError(400, f'invalid reasoning value: "{effort}" (must be {allowed}, or "none")')
    return EFFORTS[effort]


def _format(wanted: dict[str, Any]) -> Any:
    kind = str(wanted.get("type", "")).strip().lower()
    if kind == "json_object":
        return "json"
    return (wanted.get("json_schema") or {}).get("schema") if kind == "json_schema" else None


def _messages(message: Body, everything: list[dict[str, Any]]) -> list[dict[str, Any]]:
    content = message.fields.get("content")
    calls = [_tool_call(call) for call in message.get("tool_calls", [])]
    if isinstance(content, list):
        parts = [_part(message.text("role"), part) for part in content]
    elif isinstance(content, str) or calls:
        parts = [{"role": message.text("role"), "content": content or ""}]
    else:
        raise ApiError(400, f"invalid message content type: {_GO_TYPES.get(type(content), 'unknown')}")
    if parts and calls:
        parts[-1]["tool_calls"] = calls
    if parts and message.text("role") == "tool":
        asked = message.text("tool_call_id")
        parts[-1] |= {"tool_call_id": asked, "tool_name": message.text("name") or _called(everything, asked)}
    return parts


def _part(role: str, part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"role": role, "content": part["text"]}
    if kind != "image_url":
        raise ApiError(400, "invalid message format")
    url = part["image_url"].get("url") if isinstance(part.get("image_url"), dict) else part.get("image_url")
    if not isinstance(url, str):
        raise ApiError(400, "invalid message format")
    if url.startswith(("http://", "https://")):
        raise ApiError(400, "image URLs are not currently supported, please use base64 encoded data instead")
    prefix = next((prefix for prefix in IMAGE_PREFIXES if url.startswith(prefix)), None)
    if prefix is None:
        raise ApiError(400, "invalid image input")
    image = url.removeprefix(prefix)
    try:
        base64.b64decode(image, validate=True)
    except binascii.Error as error:
        raise ApiError(400, "invalid image input") from error
    return {"role": role, "content": "", "images": [image]}


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(call["function"]["arguments"])
        return {"id": call.get("id", ""), "function": {"name": call["function"]["name"], "arguments": arguments}}
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError(400, "invalid tool call arguments") from error


def _called(messages: list[dict[str, Any]], call_id: str) -> str:
    """Return the name of the function whose call a tool message answers; the last call with that id counts."""
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    return next((str(call["function"]["name"]) for call in reversed(calls) if call.get("id") == call_id), "")
