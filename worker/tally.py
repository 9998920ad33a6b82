"""What one job produced so far, read from the frames of its answer; pure."""

from __future__ import annotations

import json
from dataclasses import dataclass


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


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _ms(value: object) -> float | None:
    return value / 1e6 if isinstance(value, int) else None
