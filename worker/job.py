"""Accepted job inputs, all turned into one Request; pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from worker import routes
from worker.errors import JobInvalid
from worker.routes import Framing, Route


class Shape(Enum):
    """How the job was written, which decides how its answer and its errors look."""

    STOCK = "stock"
    OPENAI = "openai"
    NATIVE = "native"


@dataclass(frozen=True)
class Request:
    """One HTTP call to the server. `body` is JSON text ready to send, or None for a GET."""

    shape: Shape
    route: Route
    body: str | None
    stream: bool
    model: str

    @property
    def framing(self) -> Framing:
        """How the answer will be framed."""
        return self.route.framing if self.stream else Framing.JSON


# name: (accepted JSON types, words for them); the server checks what is inside.
_FIELDS: dict[str, tuple[tuple[type, ...], str]] = {
    "model": ((str,), "a string"),
    "prompt": ((str,), "a string"),
    "messages": ((list,), "a list of messages"),
    "stream": ((bool,), "true or false"),
    "options": ((dict,), "an object"),
    "tools": ((list,), "a list of tools"),
    "format": ((str, dict), '"json" or a JSON schema'),
    "system": ((str,), "a string"),
    "template": ((str,), "a string"),
    "keep_alive": ((str, int, float), "a duration"),
    "images": ((list,), "a list of base64 strings"),
    "think": ((bool, str), "true, false or a level"),
    "suffix": ((str,), "a string"),
    "raw": ((bool,), "true or false"),
    "logprobs": ((bool,), "true or false"),
    "top_logprobs": ((int,), "a number"),
}
_CHAT_ONLY = ("tools",)
_PROMPT_ONLY = ("images", "suffix", "raw")
_OPTIONS = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "num_predict",
    "num_ctx",
    "stop",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "num_gpu",
    "num_batch",
    "num_keep",
    "num_thread",
    "typical_p",
    "repeat_last_n",
]
# What other APIs call an option: the server ignores an option it does not know.
_OPTION_ELSEWHERE = {
    "max_tokens": "num_predict",
    "max_new_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
}
_HINT = "See the README for the three shapes of a job"


def parse(job_input: object, *, default_model: str, allow_admin: bool = False) -> Request:
    """Turn a job's `input` into a Request.

    Raises:
        JobInvalid: one sentence that says what is wrong and what to send instead.
        RouteForbidden: the route is not open to jobs.
    """
    if not isinstance(job_input, Mapping):
        raise JobInvalid(f"input must be an object, got {_kind(job_input)}", _HINT)
    if "openai_route" in job_input or "openai_input" in job_input:
        return _openai(job_input, default_model, allow_admin=allow_admin)
    if "route" in job_input:
        return _native(job_input, default_model, allow_admin=allow_admin)
    return _stock(job_input, default_model)


def _stock(job_input: Mapping[str, Any], default_model: str) -> Request:
    given = {name: value for name, value in job_input.items() if value is not None}
    for name, value in given.items():
        _check_field(name, value)
    chat, prompt = "messages" in given, "prompt" in given
    if chat and prompt:
        raise JobInvalid("input has both 'messages' and 'prompt'", "Send one of them")
    if not chat and not prompt:
        raise JobInvalid("input has neither 'messages' nor 'prompt'", _HINT)
    for name in _PROMPT_ONLY if chat else _CHAT_ONLY:
        if name in given:
            raise JobInvalid(f"'{name}' does not go with '{'messages' if chat else 'prompt'}'", _HINT)
    body = dict(given)
    if chat:
        body["messages"] = _messages(given["messages"], body.pop("system", None))
    model = body["model"] = body.get("model") or default_model
    stream = body.setdefault("stream", False)
    route = routes.find("/api/chat" if chat else "/api/generate", allow_admin=False)
    return Request(Shape.STOCK, route, _text(body), stream=stream, model=model)


def _openai(job_input: Mapping[str, Any], default_model: str, *, allow_admin: bool) -> Request:
    path = job_input.get("openai_route")
    if not isinstance(path, str) or not path.startswith("/"):
        raise JobInvalid("'openai_route' must be a path such as /v1/chat/completions", _HINT)
    return _routed(Shape.OPENAI, path, job_input.get("openai_input"), default_model, allow_admin=allow_admin)


def _native(job_input: Mapping[str, Any], default_model: str, *, allow_admin: bool) -> Request:
    path = job_input["route"]
    if not isinstance(path, str) or not path.startswith("/"):
        raise JobInvalid("'route' must be a path such as /api/chat", _HINT)
    extra = sorted(set(map(str, job_input)) - {"route", "body", "method"})
    if extra:
        raise JobInvalid(f"unknown field {extra[0]!r} beside 'route'", "Put the request's fields into 'body'")
    request = _routed(Shape.NATIVE, path, job_input.get("body"), default_model, allow_admin=allow_admin)
    method = job_input.get("method")
    if method is not None and method != request.route.method:
        raise JobInvalid(f"route {path} takes {request.route.method}, not {method!r:.40}", "Leave 'method' out")
    return request


def _routed(shape: Shape, path: str, value: object, default_model: str, *, allow_admin: bool) -> Request:
    route = routes.find(path, allow_admin=allow_admin)
    if isinstance(value, str) and value:
        value = _decoded(value)
    if value is not None and value != "" and not isinstance(value, Mapping):
        raise JobInvalid(f"the body for {path} must be an object, got {_kind(value)}", _HINT)
    body = dict(value) if isinstance(value, Mapping) else {}
    if route.method == "GET":
        return Request(shape, route, None, stream=False, model="")
    if not body:
        raise JobInvalid(f"route {path} needs a body", _HINT)
    if route.needs_model and not body.get("model"):
        body["model"] = default_model
    stream = body.get("stream")
    if stream is None:
        # Someone who calls the native route through a job wants one answer unless they ask for a stream.
        stream = False
        if route.streams:
            body["stream"] = False
    if not isinstance(stream, bool):
        raise JobInvalid(f"'stream' must be true or false, got {_kind(stream)}", _HINT)
    model = body.get("model")
    return Request(
        shape,
        route,
        _text(body),
        # Embeddings come as one object whatever the body says.
        stream=stream and route.framing is not Framing.JSON,
        model=model if isinstance(model, str) else "",
    )


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise JobInvalid(f"the body is a string that is not JSON ({exc})", "Send the body as an object") from exc
    except RecursionError as exc:
        raise JobInvalid("the input is nested too deeply", "Send a flatter object") from exc


def _messages(messages: list[Any], system: str | None) -> list[Any]:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise JobInvalid(f"messages[{index}] must be an object with 'role' and 'content', got {_kind(message)}")
        if not isinstance(message.get("role"), str):
            raise JobInvalid(f"messages[{index}] has no 'role'", "Use system, user, assistant or tool")
    if not messages:
        raise JobInvalid("'messages' is empty", "Send at least one message with the role 'user'")
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise JobInvalid("'system' is given twice, as a field and as the first message", "Send it once")
    return [{"role": "system", "content": system}, *messages]


def _check_field(name: str, value: object) -> None:
    if name not in _FIELDS:
        option = _OPTION_ELSEWHERE.get(name, name)
        if option in _OPTIONS:
            raise JobInvalid(f"'{name}' is not a field of the input", f"Put it into 'options': {{\"{option}\": …}}")
        near = difflib.get_close_matches(str(name), _FIELDS, n=1)
        raise JobInvalid(f"unknown field {name!r:.80}" + (f" (did you mean '{near[0]}'?)" if near else ""), _HINT)
    types, words = _FIELDS[name]
    # bool is an int in Python, not in JSON.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise JobInvalid(f"'{name}' must be {words}, got {_kind(value)}", _HINT)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "a string", bool: "true/false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _text(body: Mapping[str, Any]) -> str:
    """Return `body` as ASCII JSON: a lone surrogate becomes an escape instead of an encoding error."""
    try:
        return json.dumps(body, allow_nan=False)
    except ValueError as exc:
        raise JobInvalid("the input holds NaN or Infinity, which JSON does not have", "Send finite numbers") from exc
    except RecursionError as exc:
        raise JobInvalid("the input is nested too deeply", "Send a flatter object") from exc
