"""A failure as the API that was called writes it: Ollama's, OpenAI's or Anthropic's; pure."""

from __future__ import annotations

import json
from typing import Any

from worker.errors import JobError

ANTHROPIC = "/v1/messages"
# The kinds of Anthropic's API that have no counterpart in OpenAI's.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def text(error: JobError, path: str) -> str:
    """Return the body of a failed answer of `path`: one JSON object."""
    return json.dumps(_object(error, path))


def event(error: JobError, path: str) -> str:
    """Return how a stream of `path` that fails ends: a line, or server-sent events."""
    if path.startswith("/api/"):
        return f"{text(error, path)}\n"
    name, end = ("event: error\n", "") if path == ANTHROPIC else ("", "data: [DONE]\n\n")
    return f"{name}data: {text(error, path)}\n\n{end}"


def _object(error: JobError, path: str) -> dict[str, Any]:
    told = error.sentence()
    if path == ANTHROPIC:
        return {"type": "error", "error": {"type": _ANTHROPIC_TYPES.get(error.status) or _type(error), "message": told}}
    if path.startswith("/api/"):
        return {"error": told}
    return {"error": {"message": told, "type": _type(error), "param": None, "code": error.code}}


def _type(error: JobError) -> str:
    if error.code == "not_found_error":
        return "not_found_error"
    return "invalid_request_error" if error.status < 500 else "api_error"  # noqa: PLR2004 - HTTP's server errors
