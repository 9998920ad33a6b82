"""Native answers written as OpenAI's, for requests that were moved to a native route; pure."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from worker import chunks
from worker.errors import ServerLost
from worker.job import Request
from worker.openai_extension import CHAT

DONE = "data: [DONE]\n\n"
_NO_USAGE = {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}


def translator(request: Request) -> Callable[[str], str]:
    """Return what turns each frame of the server's answer into the text the sender of `request` expects."""
    if request.asked is None:
        return str
    return _Answer(request).translated


class _Answer:
    """One answer: its identity, and what has been sent of it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._chat = request.answered.path == CHAT
        self._head: dict[str, Any] = {}
        self._called = False

    def translated(self, frame: str) -> str:
        """Return a frame as server-sent events, or as one object where nothing is streamed.

        Raises:
            ServerLost: the frame is no answer of the native route.
        """
        try:
            answer = chunks.parse(frame)
            first, self._head = not self._head, self._head or self._identity(answer)
            if not self._request.stream:
                return json.dumps(self._whole(answer), ensure_ascii=False)
            return "".join(self._chat_events(answer, first=first) if self._chat else self._completion_events(answer))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ServerLost("the server's answer cannot be translated", "Send the request again") from exc

    def _identity(self, answer: dict[str, Any]) -> dict[str, Any]:
        created = _unix(answer.get("created_at"))
        name, whole = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        shown = f"{whole}.chunk" if self._chat and self._request.stream else whole
        identity = {"id": f"{name}-{uuid.uuid4().hex[:12]}", "object": shown, "created": created}
        return identity | {"model": answer["model"], "system_fingerprint": "fp_ollama"}

    def _whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self._chat:
            message = answer["message"]
            extras = _extras(message)
            self._called = "tool_calls" in extras
            said = {"role": message["role"], "content": message["content"], **extras}
            choice = {"index": 0, "message": said, "finish_reason": self._reason(answer), **_logprobs(answer)}
        else:
            choice = {"text": answer["response"], "index": 0, "finish_reason": answer.get("done_reason")}
        return {**self._head, "choices": [choice], "usage": _usage(answer)}

    def _chat_events(self, answer: dict[str, Any], *, first: bool) -> list[str]:
        deltas = _deltas(answer, first=first)
        self._called = self._called or any("tool_calls" in delta for delta in deltas)
        logprobs = _logprobs(answer)
        events = []
        for delta in deltas:
            events.append(self._event({"index": 0, "delta": delta, "finish_reason": None, **logprobs}))
            logprobs = {}
        if answer.get("done"):
            events.append(self._event({"index": 0, "delta": {}, "finish_reason": self._reason(answer)}))
            events += self._end(answer)
        return events

    def _completion_events(self, answer: dict[str, Any]) -> list[str]:
        choice = {"text": answer["response"], "index": 0, "finish_reason": answer.get("done_reason")}
        # With usage asked for, every chunk has one on this route: of zeros, until the last.
        events = [self._event(choice, _NO_USAGE if self._request.usage else {})]
        return events + (self._end(answer) if answer.get("done") else [])

    def _end(self, answer: dict[str, Any]) -> list[str]:
        usage = [_sse({**self._head, "choices": [], "usage": _usage(answer)})] if self._request.usage else []
        return [*usage, DONE]

    def _event(self, choice: dict[str, Any], more: dict[str, Any] | None = None) -> str:
        return _sse({**self._head, **(more or {}), "choices": [choice]})

    def _reason(self, answer: dict[str, Any]) -> str:
        reason = answer.get("done_reason") or "stop"
        return "tool_calls" if self._called and reason == "stop" else str(reason)


def _deltas(answer: dict[str, Any], *, first: bool) -> list[dict[str, Any]]:
    message = answer["message"]
    extras = _extras(message)
    content = {"content": message.get("content", "")}
    role = {"role": "assistant"} if first else {}
    if not first and answer.get("done") and not content["content"] and not extras and not answer.get("logprobs"):
        # Only figures: they come with the reason.
        return []
    if "reasoning" in extras and (content["content"] or "tool_calls" in extras):
        return [role | {"reasoning": extras.pop("reasoning")}, content | extras]
    return [role | content | extras]


def _extras(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": call.get("id", ""),
            "index": call["function"].get("index", 0),
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False, separators=(",", ":")),
            },
        }
        for call in message.get("tool_calls") or []
    ]
    thinking = {"reasoning": message["thinking"]} if message.get("thinking") else {}
    return thinking | ({"tool_calls": calls} if calls else {})


def _logprobs(answer: dict[str, Any]) -> dict[str, Any]:
    return {"logprobs": {"content": answer["logprobs"]}} if answer.get("logprobs") else {}


def _usage(answer: dict[str, Any]) -> dict[str, int]:
    asked, made = answer.get("prompt_eval_count", 0), answer.get("eval_count", 0)
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}


def _unix(timestamp: Any) -> int:
    """Return a server's timestamp, which has nanoseconds, as Unix seconds; now if it is none."""
    try:
        return int(datetime.fromisoformat(f"{str(timestamp)[:19]}+00:00").timestamp())
    except ValueError:
        return int(time.time())


def _sse(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
