"""What a job's sender receives: values the SDK can post, errors in the shape that was asked for; pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from worker import chunks
from worker.errors import JobError, ServerLost
from worker.job import Request, Shape


@dataclass
class Tally:
    """What one job produced so far; tokens and durations are the server's own figures."""

    chunks: int = 0
    body_bytes: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None

    def sent(self, value: object) -> None:
        """Count one value handed to the platform."""
        self.chunks += 1
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self.body_bytes += len(text.encode("utf-8", "replace"))

    def read(self, frame: str) -> None:
        """Take the figures from a frame that has them: the last native object, or a `usage` of the /v1 routes."""
        if "eval_count" not in frame and '"usage"' not in frame:
            return
        # Not splitlines(): it also cuts at characters that JSON may hold as they are.
        for line in frame.split("\n"):
            self._read_object(line.removeprefix("data:").strip())

    def _read_object(self, text: str) -> None:
        try:
            value = json.loads(text)
        except ValueError:
            return
        if not isinstance(value, dict):
            return
        response = value.get("response")
        usage = (response if isinstance(response, dict) else value).get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _whole(usage.get("prompt_tokens", usage.get("input_tokens")))
            self.output_tokens = _whole(usage.get("completion_tokens", usage.get("output_tokens")))
        if "eval_count" in value:
            self.prompt_tokens = _whole(value.get("prompt_eval_count"))
            self.output_tokens = _whole(value.get("eval_count"))
            self.prefill_ms = _ms(value.get("prompt_eval_duration"))
            self.decode_ms = _ms(value.get("eval_duration"))


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

    A dict with `error` fails the job with that text. An OpenAI client gets OpenAI's error object instead, as text,
    because the SDK would turn an object into a Python repr; errors worth a retry fail the job unless frames are
    already out, because clients retry a failed call and not a body.
    """
    if request is None or request.shape is not Shape.OPENAI or not as_body or (error.retryable and not streaming):
        return {"error": error.sentence()}
    body = json.dumps(
        {"error": {"message": error.sentence(), "type": _openai_type(error), "param": None, "code": error.code}}
    )
    return f"data: {body}\n\ndata: [DONE]\n\n" if request.stream else body


def _openai_type(error: JobError) -> str:
    if error.code == "not_found_error":
        return "not_found_error"
    return "invalid_request_error" if error.status < 500 else "api_error"  # noqa: PLR2004 - HTTP's server errors


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _ms(value: object) -> float | None:
    return value / 1e6 if isinstance(value, int) else None
