"""Frames waiting for the previous post, joined into as few chunks as their format allows; pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from worker.routes import Framing

# The platform takes 1 MB a chunk, counted as posted: quotes and newlines escaped once more.
CHUNK_BYTES = 900_000
_TEXTS = ("response", "content", "thinking")
_TEXT_FRAME = {"model", "remote_model", "remote_host", "created_at", "message", "response", "thinking", "done"}
_TEXT_MESSAGE = {"role", "content", "thinking"}


def join(frames: Sequence[str], framing: Framing) -> list[str]:
    """Return the chunks that carry `frames`, in order, none of them cutting a frame.

    SSE frames are text that may be joined. NDJSON frames are one object each, and clients parse one object a
    chunk: neighbours that only carry more text become one object with the texts joined.
    """
    if framing is Framing.SSE:
        return _packed(frames)
    chunks: list[str] = []
    run: list[dict[str, Any]] = []
    size = 0
    for frame in frames:
        delta = _mergeable(frame)
        length = _posted_bytes(frame)
        if run and (delta is None or not _same_kind(run[0], delta) or size + length > CHUNK_BYTES):
            chunks.append(_merged(run))
            run, size = [], 0
        size += length
        if delta is None:
            chunks.append(frame)
        else:
            run.append(delta)
    return [*chunks, _merged(run)] if run else chunks


def parse(text: str) -> Any:
    """Return the value of JSON `text` made safe to send again: no lone surrogate, no NaN, no infinity.

    Raises:
        ValueError: `text` is not JSON.
    """
    return _clean(json.loads(text, parse_constant=lambda _: None))


def _packed(frames: Sequence[str]) -> list[str]:
    packs: list[list[str]] = []
    size = 0
    for frame in frames:
        length = _posted_bytes(frame)
        if not packs or size + length > CHUNK_BYTES:
            packs.append([])
            size = 0
        packs[-1].append(frame)
        size += length
    return ["".join(pack) for pack in packs]


def _mergeable(frame: str) -> dict[str, Any] | None:
    """Return the frame as an object if it only carries text, else None."""
    try:
        value = parse(frame)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("done") is not False or not value.keys() <= _TEXT_FRAME:
        return None
    message = value.get("message", {})
    if not isinstance(message, dict) or not message.keys() <= _TEXT_MESSAGE:
        return None
    texts = [part[name] for part in (value, message) for name in _TEXTS if name in part]
    return value if texts and all(isinstance(text, str) for text in texts) else None


def _same_kind(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() | {"thinking"} == right.keys() | {"thinking"}


def _merged(run: Sequence[dict[str, Any]]) -> str:
    """Return one frame with the texts of the whole run; anything else is as in its last frame."""
    whole = _joined(run)
    if "message" in whole:
        whole["message"] = _joined([delta["message"] for delta in run])
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for part in parts:
        whole.update(part)
    return whole | {name: "".join(part.get(name, "") for part in parts) for name in _TEXTS if name in whole}


def _posted_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))


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
    # A number too large for a float is read as infinity.
    return None if isinstance(value, float) and not math.isfinite(value) else value
