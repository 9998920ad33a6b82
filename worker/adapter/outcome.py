"""What a job's sender receives: values the SDK can post, errors in the shape that was asked for; pure."""

from __future__ import annotations

import json
from typing import Any

from worker import api_error, chunks
from worker.errors import JobError, ServerLost
from worker.job import Request, Shape


def whole(frame: str) -> Any:
    """Return the single value of a non-streamed answer: the object itself, made safe to post."""
    try:
        value = chunks.parse(frame)
    except ValueError:
        raise ServerLost("the server's answer is not JSON", "Send the request again") from None
    # The SDK reads a top-level "error" as the job's failure; only real errors may look like one.
    if isinstance(value, dict) and value.get("error"):
        return json.dumps(value)
    return value


def failure(error: JobError, request: Request | None, *, as_body: bool, streaming: bool) -> Any:
    """Return what to yield for `error`.

    A dict with `error` fails the job with that text. A client of OpenAI's API, or of Anthropic's messages, gets the
    error object of that API instead, as text, because the SDK would turn an object into a Python repr; errors worth a
    retry fail the job unless frames are already out, because clients retry a failed call and not a body.
    """
    if request is None or request.shape is not Shape.OPENAI or not as_body or (error.retryable and not streaming):
        return {"error": error.sentence()}
    path = request.answered.path
    return api_error.event(error, path) if request.stream else api_error.text(error, path)
