"""Accepted job inputs, all turned into one Request; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from worker import fields, images, multipart, openai_extension, routes, sampling
from worker.errors import JobInvalid
from worker.fields import HINT, kind
from worker.routes import Framing, Route

JSON_TYPE = "application/json"


class Shape(Enum):
    """How the job was written, which decides how its answer and its errors look."""

    STOCK = "stock"
    OPENAI = "openai"
    NATIVE = "native"


@dataclass(frozen=True)
class Request:
    """One HTTP call to the server. `body` is what to send, JSON text or a form, or None for a GET.

    `asked` is the OpenAI route the job named, where the request goes to a native one and its answer must be
    translated back.
    """

    shape: Shape
    route: Route
    body: str | bytes | None
    stream: bool
    model: str
    content_type: str = JSON_TYPE
    asked: Route | None = None
    usage: bool = False

    @property
    def framing(self) -> Framing:
        """How the server's answer will be framed."""
        return self.route.framing if self.stream else Framing.JSON

    @property
    def answered(self) -> Route:
        """The route whose answer the sender expects."""
        return self.asked or self.route


@dataclass(frozen=True)
class _Terms:
    """What this worker allows, and the model it takes when none is named."""

    default_model: str
    allow_admin: bool
    allow_images: bool


def parse(job_input: object, *, default_model: str, allow_admin: bool = False, allow_images: bool = True) -> Request:
    """Turn a job's `input` into a Request.

    Raises:
        JobInvalid: one sentence that says what is wrong and what to send instead.
        RouteForbidden: the route is not open to jobs.
    """
    terms = _Terms(default_model, allow_admin, allow_images)
    if not isinstance(job_input, Mapping):
        raise JobInvalid(f"input must be an object, got {kind(job_input)}", HINT)
    if "openai_route" in job_input or "openai_input" in job_input:
        return _openai(job_input, terms)
    if "route" in job_input:
        return _native(job_input, terms)
    return _stock(job_input, terms)


def addressed(job_input: object) -> Request | None:
    """Return a Request that only tells how an error must look for a job that `parse` refused, or None."""
    if not isinstance(job_input, Mapping) or "openai_route" not in job_input:
        return None
    body = job_input.get("openai_input")
    stream = isinstance(body, Mapping) and body.get("stream") is True
    path = job_input["openai_route"]
    return Request(Shape.OPENAI, Route(path if isinstance(path, str) else ""), None, stream=stream, model="")


def renamed(request: Request, model: str) -> Request:
    """Return `request` for the model the server calls `model`; a form is left as it is."""
    if not isinstance(request.body, str) or request.model == model:
        return request
    return replace(request, model=model, body=_text({**json.loads(request.body), "model": model}))


def _stock(job_input: Mapping[str, Any], terms: _Terms) -> Request:
    given = {name: value for name, value in sampling.mapped(job_input).items() if value is not None}
    fields.check(given)
    body = dict(given)
    chat = "messages" in given
    if chat:
        body["messages"] = _messages(given["messages"], body.pop("system", None))
    model = body["model"] = body.get("model") or terms.default_model
    stream = body.setdefault("stream", False)
    if not terms.allow_images:
        images.refuse(body)
    route = routes.find("/api/chat" if chat else "/api/generate", allow_admin=False)
    return Request(Shape.STOCK, route, _text(body), stream=stream, model=model)


def _openai(job_input: Mapping[str, Any], terms: _Terms) -> Request:
    path = job_input.get("openai_route")
    if not isinstance(path, str) or not path.startswith("/"):
        raise JobInvalid("'openai_route' must be a path such as /v1/chat/completions", HINT)
    return _routed(Shape.OPENAI, path, job_input.get("openai_input"), terms)


def _native(job_input: Mapping[str, Any], terms: _Terms) -> Request:
    path = job_input["route"]
    if not isinstance(path, str) or not path.startswith("/"):
        raise JobInvalid("'route' must be a path such as /api/chat", HINT)
    extra = sorted(set(map(str, job_input)) - {"route", "body", "method"})
    if extra:
        raise JobInvalid(f"unknown field {extra[0]!r:.80} beside 'route'", "Put the request's fields into 'body'")
    request = _routed(Shape.NATIVE, path, job_input.get("body"), terms)
    method = job_input.get("method")
    if method is not None and method != request.answered.method:
        # A name, not whatever was sent: Python cannot write a value nested too deeply.
        got = repr(method)[:40] if isinstance(method, str) else kind(method)
        raise JobInvalid(f"route {path} takes {request.answered.method}, not {got}", "Leave 'method' out")
    return request


def _routed(shape: Shape, path: str, value: object, terms: _Terms) -> Request:
    route = routes.find(path, allow_admin=terms.allow_admin)
    body = _body(path, value)
    if route.method == "GET":
        return Request(shape, route, None, stream=False, model="")
    if not body:
        raise JobInvalid(f"route {path} needs a body", HINT)
    if route.needs_model and not body.get("model"):
        body["model"] = terms.default_model
    stream = body.get("stream")
    if stream is None:
        # Someone who calls the native route through a job wants one answer unless they ask for a stream.
        stream = False
        if route.streams:
            body["stream"] = False
    if not isinstance(stream, bool):
        raise JobInvalid(f"'stream' must be true or false, got {kind(stream)}", HINT)
    if not terms.allow_images:
        images.refuse(body)
    # Embeddings come as one object whatever the body says.
    return _request(shape, route, body, stream=stream and route.framing is not Framing.JSON)


def _request(shape: Shape, route: Route, body: dict[str, Any], *, stream: bool) -> Request:
    model = body["model"] if isinstance(body.get("model"), str) else ""
    if route.form:
        form, content_type = multipart.encode(body)
        return Request(shape, route, form, stream=False, model=model, content_type=content_type)
    if not openai_extension.used(route.path, body):
        return Request(shape, route, _text(body), stream=stream, model=model)
    path, native = openai_extension.native(route.path, body)
    target = routes.find(path, allow_admin=False)
    usage = openai_extension.wants_usage(body)
    return Request(shape, target, _text(native), stream=stream, model=model, asked=route, usage=usage)


def _body(path: str, value: object) -> dict[str, Any]:
    if isinstance(value, str) and value:
        value = _decoded(value)
    if value is not None and value != "" and not isinstance(value, Mapping):
        raise JobInvalid(f"the body for {path} must be an object, got {kind(value)}", HINT)
    return dict(value) if isinstance(value, Mapping) else {}


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
            raise JobInvalid(f"messages[{index}] must be an object with 'role' and 'content', got {kind(message)}")
        if not isinstance(message.get("role"), str):
            raise JobInvalid(f"messages[{index}] has no 'role'", "Use system, user, assistant or tool")
    if not messages:
        raise JobInvalid("'messages' is empty", "Send at least one message with the role 'user'")
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise JobInvalid("'system' is given twice, as a field and as the first message", "Send it once")
    return [{"role": "system", "content": system}, *messages]


def _text(body: Mapping[str, Any]) -> str:
    """Return `body` as ASCII JSON: a lone surrogate becomes an escape instead of an encoding error."""
    try:
        return json.dumps(body, allow_nan=False)
    except ValueError as exc:
        raise JobInvalid("the input holds NaN or Infinity, which JSON does not have", "Send finite numbers") from exc
    except RecursionError as exc:
        raise JobInvalid("the input is nested too deeply", "Send a flatter object") from exc
