"""Frames waiting for the previous post, joined into as few chunks as their format allows; pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from worker.routes import Framing

# The platform takes 1 MB a chunk; the rest is room for its own JSON around ours.
CHUNK_BYTES = 900_000


def join(frames: Sequence[str], framing: Framing) -> list[str]:
    """Return the chunks that carry `frames`, in order, none of them cutting a frame.

    SSE frames are text that may be joined. NDJSON frames are one object each, and clients parse one object a
    chunk: neighbours that only carry more text become one object with the texts joined.
    """
    if framing is Framing.SSE:
        return _packed(frames)
    chunks: list[str] = []
    pending: dict[str, Any] | None = None
    for frame in frames:
        delta = _mergeable(frame)
        if delta is not None and pending is not None and _fits(pending, delta):
            pending = _merge(pending, delta)
            continue
        if pending is not None:
            chunks.append(_dumps(pending))
        pending = delta
        if delta is None:
            chunks.append(frame)
    return [*chunks, _dumps(pending)] if pending is not None else chunks


def parse(text: str) -> Any:
    """Return the value of JSON `text` made safe to send again: no lone surrogate, no NaN.

    Raises:
        ValueError: `text` is not JSON.
    """
    return _clean(json.loads(text, parse_constant=lambda _: None))


def _packed(frames: Sequence[str]) -> list[str]:
    chunks: list[str] = []
    size = 0
    for frame in frames:
        length = len(frame.encode("utf-8", "replace"))
        if chunks and size + length <= CHUNK_BYTES:
            chunks[-1] += frame
            size += length
        else:
            chunks.append(frame)
            size = length
    return chunks


def _mergeable(frame: str) -> dict[str, Any] | None:
    """Return the frame as an object if it only carries text, else None."""
    try:
        value = parse(frame)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("done") is not False or "error" in value or value.get("logprobs"):
        return None
    message = value.get("message")
    if isinstance(message, dict) and message.keys() <= {"role", "content", "thinking"}:
        return value
    return value if isinstance(value.get("response"), str) and "message" not in value else None


def _fits(left: dict[str, Any], right: dict[str, Any]) -> bool:
    same_kind = left.keys() | {"thinking"} == right.keys() | {"thinking"}
    return same_kind and len(str(left)) + len(str(right)) < CHUNK_BYTES // 4


def _merge(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    merged = {**left, **right}
    for name in ("response", "thinking"):
        if name in merged:
            merged[name] = _joined(left.get(name), right.get(name))
    if "message" in merged:
        ours, theirs = left["message"], right["message"]
        merged["message"] = {**ours, **theirs}
        for name in ("content", "thinking"):
            if name in merged["message"]:
                merged["message"][name] = _joined(ours.get(name), theirs.get(name))
    return merged


def _joined(left: object, right: object) -> str:
    return _whole((left if isinstance(left, str) else "") + (right if isinstance(right, str) else ""))


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _whole(text: str) -> str:
    """Join surrogate halves into characters and replace the ones left alone."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _clean(item) for key, item in value.items()}
    return value
