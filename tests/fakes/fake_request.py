"""A request as the fake reads it, and how it is refused."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from fake_wire import Native, dumps

SIZE_BYTES = 1_000_000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refused(Exception):
    """The request ends with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


async def decoded(request: web.Request) -> dict[str, Any]:
    """Return the body of a request; raise Refused 400 when it is none, or not an object with a model's name."""
    raw_body = await request.read()
    if not raw_body.strip():
        raise Refused(400, "EOF" if request.path.startswith("/v1") else "missing request body")
    try:
        body = json.loads(raw_body)
    except ValueError as error:
        raise Refused(400, "invalid character looking for beginning of value") from error
    if not isinstance(body, dict):
        raise Refused(400, "json: cannot unmarshal array into Go value of type api.Request")
    if not isinstance(body.get("model") or "", str):
        raise Refused(400, "json: cannot unmarshal number into Go struct field .model of type string")
    return body


async def form(request: web.Request) -> dict[str, Any]:
    """Return a form's fields and its file's name and size; raise Refused 400 when that or the model is missing."""
    sent = await request.post()
    fields: dict[str, Any] = {name: value for name, value in sent.items() if isinstance(value, str)}
    file = sent.get("file")
    if not fields.get("model"):
        raise Refused(400, "model is required")
    if not isinstance(file, web.FileField):
        raise Refused(400, "file is required: http: no such file")
    return fields | {"filename": file.filename, "file_bytes": len(file.file.read())}


@web.middleware
async def refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Write a refusal in the way of the API that was called."""
    try:
        return await handler(request)
    except Refused as refusal:
        if not request.path.startswith("/v1"):
            return answered({"error": refusal.text}, refusal.status)
        if request.path == "/v1/messages":
            kind = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}
            error = {"type": kind.get(refusal.status, "api_error"), "message": refusal.text}
            return answered({"type": "error", "error": error, "request_id": "req_1"}, refusal.status)
        kind = {400: "invalid_request_error", 404: "not_found_error"}.get(refusal.status, "api_error")
        return answered({"error": {"message": refusal.text, "type": kind, "param": None, "code": None}}, refusal.status)
    except web.HTTPNotFound:
        return web.Response(status=404, text="404 page not found")
    except web.HTTPMethodNotAllowed:
        return web.Response(status=405, text="405 method not allowed")


def translated(body: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAI body in Ollama's format, as far as the plan looks at it."""
    stop = body.get("stop") or []
    options = {"stop": [stop] if isinstance(stop, str) else stop}
    if body.get("max_tokens") is not None:
        options["num_predict"] = body["max_tokens"]
    form = body.get("response_format") or {}
    schema = (form.get("json_schema") or {}).get("schema") or ("json" if form.get("type") == "json_object" else None)
    think = {"none": False, "": None}.get(body.get("reasoning_effort") or "", True)
    messages = [_flat(message) for message in body.get("messages") or []]
    return {**body, "options": options, "format": schema, "think": think, "messages": messages}


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    text = "".join(part.get("text", "") for part in parts)
    return {**message, "content": text, "images": [part["image_url"] for part in parts if "image_url" in part]}


def tagged(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def entry(name: str) -> dict[str, Any]:
    kind = {"parent_model": "", "format": "gguf", "family": "fake", "families": ["fake"]}
    details = kind | {"parameter_size": "1M", "quantization_level": "F16"}
    return {"name": tagged(name), "model": tagged(name), "size": SIZE_BYTES, "digest": "0" * 64, "details": details}


def answered(value: Any, status: int = 200) -> web.Response:
    return raw(dumps(value), Native.whole_type, status)


def raw(body: bytes, content_type: str, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})
