"""Ollama's answers translated into OpenAI's: one object, a stream of chunks, or an error."""

from __future__ import annotations

import base64
import calendar
import random
import struct
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from worker.local.engine.reply import ApiError, as_json, dumps

FINGERPRINT = "fp_ollama"
ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error"}
DONE = b"data: [DONE]\n\n"


def error(failure: ApiError) -> web.Response:
    """Return OpenAI's error object with the failure's status."""
    kind = ERROR_TYPES.get(failure.status, "api_error")
    body = {"error": {"message": failure.message, "type": kind, "param": None, "code": None}}
    return as_json(body, failure.status, "application/json")


def chat(answer: dict[str, Any]) -> dict[str, Any]:
    """Translate the one object of an answered chat."""
    message = answer["message"]
    result = {"role": message["role"], "content": message["content"]} | _extras(message)
    choice = {"index": 0, "message": result, "finish_reason": _reason(answer, called="tool_calls" in message)}
    return _head("chatcmpl", "chat.completion", answer["model"]) | {
        "choices": [choice | _logprobs(answer)],
        "usage": _usage(answer),
    }


def completion(answer: dict[str, Any]) -> dict[str, Any]:
    """Translate the one object of an answered generate request."""
    choice = {"text": answer["response"], "index": 0, "finish_reason": answer.get("done_reason")}
    return _head("cmpl", "text_completion", answer["model"]) | {"choices": [choice], "usage": _usage(answer)}


async def chat_chunks(answers: AsyncGenerator[dict[str, Any]], *, usage: bool) -> AsyncGenerator[bytes]:
    """Translate a streamed chat into server-sent events; an error in mid-stream ends them without [DONE]."""
    head: dict[str, Any] = {}
    called = False
    try:
        async with aclosing(answers):
            async for answer in answers:
                first = not head
                head = head or _head("chatcmpl", "chat.completion.chunk", answer["model"])
                for delta in _deltas(answer, first=first):
                    called = called or "tool_calls" in delta
                    yield _event(head, {"index": 0, "delta": delta, "finish_reason": None} | _logprobs(answer))
                if answer["done"]:
                    yield _event(head, {"index": 0, "delta": {}, "finish_reason": _reason(answer, called=called)})
                    if usage:
                        yield b"data: " + dumps(head | {"choices": [], "usage": _usage(answer)}) + b"\n\n"
                    yield DONE
    except ApiError:
        if not head:
            raise
        yield _event(head | {"model": ""}, {"index": 0, "delta": {"content": ""}, "finish_reason": None})


async def completion_chunks(answers: AsyncGenerator[dict[str, Any]], *, usage: bool) -> AsyncGenerator[bytes]:
    """Translate a streamed generate request into server-sent events."""
    head: dict[str, Any] = {}
    zero = {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}} if usage else {}
    try:
        async with aclosing(answers):
            async for answer in answers:
                head = head or _head("cmpl", "text_completion", answer["model"])
                choice = {"text": answer["response"], "index": 0, "finish_reason": answer.get("done_reason")}
                yield _event(head | zero, choice)
                if answer["done"]:
                    if usage:
                        yield b"data: " + dumps(head | {"choices": [], "usage": _usage(answer)}) + b"\n\n"
                    yield DONE
    except ApiError:
        if not head:
            raise
        yield _event(head | zero | {"model": ""}, {"text": "", "index": 0, "finish_reason": None})


def embeddings(answer: dict[str, Any], form: str) -> dict[str, Any]:
    """Translate an /api/embed answer; `form` "base64" packs each vector as little-endian float32."""
    packed = form.lower() == "base64"
    data = [
        {"object": "embedding", "embedding": _packed(vector) if packed else vector, "index": index}
        for index, vector in enumerate(answer["embeddings"])
    ]
    tokens = answer.get("prompt_eval_count", 0)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": answer["model"], "usage": usage}


def model(identity: str, modified: str) -> dict[str, Any]:
    """Return the object of one model; `modified` is Ollama's timestamp."""
    created = calendar.timegm(time.strptime(modified[:19], "%Y-%m-%dT%H:%M:%S"))
    owner = identity.rsplit("/", 2)[-2] if "/" in identity else "library"
    return {"id": identity, "object": "model", "created": created, "owned_by": owner}


def _head(prefix: str, kind: str, name: str) -> dict[str, Any]:
    number = random.randrange(999)  # noqa: S311 - an identifier for people, not a secret
    head = {"id": f"{prefix}-{number}", "object": kind, "created": int(time.time())}
    return head | {"model": name, "system_fingerprint": FINGERPRINT}


def _event(head: dict[str, Any], choice: dict[str, Any]) -> bytes:
    return b"data: " + dumps(head | {"choices": [choice]}) + b"\n\n"


def _deltas(answer: dict[str, Any], *, first: bool) -> list[dict[str, Any]]:
    message = answer["message"]
    extras = _extras(message)
    if answer["done"] and not first and not message["content"] and not extras:
        # Only timings: OpenAI goes straight to the chunk with the reason.
        return []
    role = {"role": "assistant"} if first else {}
    content = {"content": message["content"]}
    if "reasoning" in extras and (message["content"] or "tool_calls" in extras):
        return [role | {"reasoning": extras.pop("reasoning")}, content | extras]
    return [role | content | extras]


def _extras(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "index": call["function"]["index"],
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": dumps(call["function"]["arguments"]).decode()},
        }
        for call in message.get("tool_calls", [])
    ]
    reasoning = {"reasoning": message["thinking"]} if message.get("thinking") else {}
    return reasoning | ({"tool_calls": calls} if calls else {})


def _reason(answer: dict[str, Any], *, called: bool) -> str:
    reason = str(answer.get("done_reason") or "stop")
    return "tool_calls" if called and reason == "stop" else reason


def _logprobs(answer: dict[str, Any]) -> dict[str, Any]:
    return {"logprobs": {"content": answer["logprobs"]}} if answer.get("logprobs") else {}


def _usage(answer: dict[str, Any]) -> dict[str, int]:
    asked, answered = answer.get("prompt_eval_count", 0), answer.get("eval_count", 0)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
