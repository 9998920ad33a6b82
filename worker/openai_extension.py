"""Ollama's own fields in an OpenAI body: the request moved to the native route, which knows them; pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from worker.errors import JobInvalid
from worker.fields import kind

# What Ollama's OpenAI routes would drop without a word.
FIELDS = ("options", "num_ctx", "keep_alive")
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_NATIVE = {CHAT: "/api/chat", COMPLETION: "/api/generate"}
# OpenAI's name: the option. The server's OpenAI routes do the same, and take 1 for the first two where nothing is said.
_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "max_tokens": "num_predict",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
_EFFORTS = {"none": False, "minimal": "low", "xhigh": "max", "ultra": "max"} | {
    level: level for level in ("low", "medium", "high", "max")
}
_DATA_URL = re.compile(r"data:(?:image/(?:jpeg|jpg|png|webp))?;base64,")


def used(path: str, body: Mapping[str, Any]) -> bool:
    """Return whether `body` for `path` has a field that only the native route understands."""
    return path in _NATIVE and any(body.get(name) is not None for name in FIELDS)


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Return whether a stream should end with the token counts."""
    options = body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def native(path: str, body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the native route of `path` and `body` as that route takes it.

    Raises:
        JobInvalid: a field has a value neither route takes.
    """
    # The native route streams unless it is told not to.
    stream = body.get("stream") or False
    whole: dict[str, Any] = {"model": body["model"], "stream": stream, "options": _options(body)}
    if body.get("keep_alive") is not None:
        whole["keep_alive"] = body["keep_alive"]
    whole |= _chat(body) if path == CHAT else _completion(body)
    return _NATIVE[path], {name: value for name, value in whole.items() if value is not None}


def _chat(body: Mapping[str, Any]) -> dict[str, Any]:
    messages = _list(body, "messages")
    if not messages:
        raise JobInvalid("'messages' is empty", "Send at least one message with the role 'user'")
    return {
        "messages": [part for message in messages for part in _message(message, messages)],
        "tools": body.get("tools"),
        "format": _format(body.get("response_format")),
        "think": _think(body),
        "logprobs": body.get("logprobs"),
        "top_logprobs": body.get("top_logprobs"),
    }


def _completion(body: Mapping[str, Any]) -> dict[str, Any]:
    count = body.get("logprobs")
    return {
        "prompt": body.get("prompt"),
        "suffix": body.get("suffix"),
        "logprobs": bool(count) or None,
        "top_logprobs": count or None,
    }


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    own = body.get("options") or {}
    if not isinstance(own, Mapping):
        raise JobInvalid(f"'options' must be an object, got {kind(own)}")
    options: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
    options |= {option: body[name] for name, option in _OPTIONS.items() if body.get(name) is not None}
    stop = body.get("stop")
    if stop is not None:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    if body.get("num_ctx") is not None:
        options["num_ctx"] = body["num_ctx"]
    return options | dict(own)


def _format(wanted: Any) -> Any:
    wanted = wanted if isinstance(wanted, Mapping) else {}
    if wanted.get("type") == "json_object":
        return "json"
    schema = wanted.get("json_schema")
    return schema.get("schema") if wanted.get("type") == "json_schema" and isinstance(schema, Mapping) else None


def _think(body: Mapping[str, Any]) -> Any:
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, Mapping) else body.get("reasoning_effort")
    if not effort:
        return None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        got = repr(effort)[:40] if isinstance(effort, str) else kind(effort)
        raise JobInvalid(f"unknown reasoning effort {got}", f"Use one of {', '.join(_EFFORTS)}")
    return _EFFORTS[effort]


def _message(message: Any, everything: Sequence[Any]) -> list[dict[str, Any]]:
    """Return one message for each part of its content, as the server's own translation does."""
    if not isinstance(message, Mapping):
        raise JobInvalid(f"a message must be an object, got {kind(message)}")
    role, content = message.get("role"), message.get("content")
    calls = [_call(call) for call in _list(message, "tool_calls")]
    if isinstance(content, list):
        parts = [{"role": role, "content": "", **_part(part)} for part in content]
    elif isinstance(content, str) or (content is None and calls):
        parts = [{"role": role, "content": content or ""}]
    else:
        raise JobInvalid(f"the content of a message must be text or a list of parts, got {kind(content)}")
    extras: dict[str, Any] = {"thinking": message.get("reasoning"), "tool_calls": calls or None}
    if role == "tool":
        asked = message.get("tool_call_id")
        extras |= {"tool_call_id": asked, "tool_name": message.get("name") or _called(everything, asked)}
    if parts:
        parts[-1] |= {name: value for name, value in extras.items() if value is not None}
    return parts


def _part(part: Any) -> dict[str, Any]:
    name = part.get("type") if isinstance(part, Mapping) else None
    value = part.get(name) if isinstance(name, str) else None
    if name == "text" and isinstance(value, str):
        return {"content": value}
    if name == "image_url":
        url = value.get("url") if isinstance(value, Mapping) else value
        found = _DATA_URL.match(url) if isinstance(url, str) else None
        if found is None or not isinstance(url, str):
            raise JobInvalid("an image must be a data URL with a jpeg, png or webp in base64")
        return {"images": [_base64(url[found.end() :])]}
    if name == "input_audio" and isinstance(value, Mapping):
        return {"images": [_base64(value.get("data"))]}
    raise JobInvalid("a part of a message must have the type 'text', 'image_url' or 'input_audio', and that field")


def _base64(text: Any) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as exc:
        raise JobInvalid("an image or sound is not base64") from exc
    return str(text)


def _call(call: Any) -> dict[str, Any]:
    try:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        return {"id": call.get("id", ""), "function": {"name": function["name"], "arguments": arguments}}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise JobInvalid("a tool call needs a function with a name and arguments in JSON text") from exc
    except RecursionError as exc:
        raise JobInvalid("the input is nested too deeply", "Send a flatter object") from exc


def _called(messages: Sequence[Any], call_id: Any) -> str | None:
    """Return the name of the function whose call a tool's message answers; the last call with that id counts."""
    calls = [call for m in messages if isinstance(m, Mapping) for call in _list(m, "tool_calls")]
    return next((_call(call)["function"]["name"] for call in reversed(calls) if call.get("id") == call_id), None)


def _list(holder: Mapping[str, Any], name: str) -> list[Any]:
    value = holder.get(name)
    if value is not None and not isinstance(value, list):
        raise JobInvalid(f"'{name}' must be a list, got {kind(value)}")
    return value or []
