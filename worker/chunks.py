"""Frames waiting for the previous post, joined into as few chunks as their format allows; pure."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from worker.routes import Framing

# The platform takes 1 MB a chunk, counted as posted: quotes and newlines escaped once more.
CHUNK_BYTES = 900_000
# The worst is a control character, escaped twice.
_LONGEST_CHARACTER_BYTES = 8
_TEXTS = ("response", "content", "thinking")
_TEXT_FRAME = {"model", "remote_model", "remote_host", "created_at", "message", "response", "thinking", "done"}
_TEXT_MESSAGE = {"role", "content", "thinking"}
# Nearly every frame of a stream, as the server writes it: what is before the time, the time, what is before the text,
# the text, what is after. Text with an escape that might be half a character is left to a real parser.
_PLAIN = re.compile(
    r'(\{"model":"[^"\\]*","created_at":")([^"\\]*)'
    r'(","message":\{"role":"assistant","content":"|","response":")'
    r'([^"\\\x00-\x1f\ud800-\udfff]*(?:\\(?:["\\/bfnrt]|u00[0-9a-f]{2})[^"\\\x00-\x1f\ud800-\udfff]*)*)'
    r'("\},"done":false\}|","done":false\})'
)


def join(frames: Sequence[str], framing: Framing) -> list[str]:
    """Return the chunks that carry `frames`, in order, none of them cutting a frame.

    SSE frames are text that may be joined, and cut where one is too long for a chunk. NDJSON frames are one object
    each, and clients parse one object a chunk: neighbours that only carry more text become one object with the texts
    joined, and one with too long a text becomes several.
    """
    if framing is Framing.SSE:
        return _packed(frames)
    chunks: list[str] = []
    run: list[dict[str, Any]] = []
    size = 0
    # Nearly always everything fits, and nothing need be counted.
    fits = _fits(frames)
    if fits:
        frames = _collapsed(frames)
        if len(frames) == 1 and _PLAIN.fullmatch(frames[0]):
            return list(frames)
    for frame in frames:
        delta = _mergeable(frame)
        length = 0 if fits else _posted_bytes(frame)
        if run and (delta is None or not _same_kind(run[0], delta) or size + length > CHUNK_BYTES):
            chunks.append(_merged(run))
            run, size = [], 0
        size += length
        if length > CHUNK_BYTES:
            chunks += _reduced(frame) if delta is None else _divided(delta)
            size = 0
        elif delta is None:
            chunks.append(frame)
        else:
            run.append(delta)
    return [*chunks, _merged(run)] if run else chunks


def parse(text: str) -> Any:
    """Return the value of JSON `text` made safe to send again: no lone surrogate, no NaN, no infinity.

    Raises:
        ValueError: `text` is not JSON.
    """
    value = _DECODER.decode(text)
    # Walking through every value costs more than reading it; only an escape or a raw half can be a surrogate.
    return _clean(value) if "\\ud" in text or "\\uD" in text or not _is_encodable(text) else value


def _packed(frames: Sequence[str]) -> list[str]:
    if _fits(frames):
        return ["".join(frames)] if frames else []
    packs: list[list[str]] = []
    size = 0
    for frame in (piece for whole in frames for piece in _cut(whole)):
        length = _posted_bytes(frame)
        if not packs or size + length > CHUNK_BYTES:
            packs.append([])
            size = 0
        packs[-1].append(frame)
        size += length
    return ["".join(pack) for pack in packs]


def _cut(frame: str) -> list[str]:
    if _fits([frame]) or _posted_bytes(frame) <= CHUNK_BYTES:
        return [frame]
    return [frame[at : at + _piece_chars()] for at in range(0, len(frame), _piece_chars())]


def _collapsed(frames: Sequence[str]) -> list[str]:
    """Return `frames` with neighbours that differ in time and text only made one, without parsing any."""
    collapsed: list[str] = []
    for around, group in itertools.groupby(((_PLAIN.fullmatch(frame), frame) for frame in frames), key=_around):
        if around is None:
            collapsed += [frame for _, frame in group]
            continue
        found = [match for match, _ in group if match is not None]
        head, middle, tail = around
        collapsed.append(f"{head}{found[-1][2]}{middle}{''.join(match[4] for match in found)}{tail}")
    return collapsed


def _around(read: tuple[re.Match[str] | None, str]) -> tuple[str, str, str] | None:
    found = read[0]
    return (found[1], found[3], found[5]) if found is not None else None


def _divided(delta: dict[str, Any]) -> list[str]:
    """Return frames that each carry a piece of a long text."""
    message = delta.get("message", {})
    longest = max(len(part[name]) for part in (delta, message) for name in _TEXTS if name in part)
    frames = []
    for at in range(0, longest, _piece_chars()):
        piece = delta | _pieces(delta, at)
        frames.append(_dumps(piece | ({"message": message | _pieces(message, at)} if message else {})))
    return frames


def _pieces(part: dict[str, Any], at: int) -> dict[str, str]:
    return {name: part[name][at : at + _piece_chars()] for name in _TEXTS if name in part}


def _reduced(frame: str) -> list[str]:
    """Return a frame that cannot be divided without what nobody needs of it: the token numbers of the last one."""
    try:
        value = parse(frame)
    except ValueError:
        return [frame]
    if isinstance(value, dict) and value.pop("context", None) is not None:
        return [_dumps(value | {"context_omitted": "too long for one chunk"})]
    return [frame]


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
    return left.keys() == right.keys() or left.keys() | {"thinking"} == right.keys() | {"thinking"}


def _merged(run: Sequence[dict[str, Any]]) -> str:
    """Return one frame with the texts of the whole run; anything else is as in its last frame."""
    whole = _joined(run)
    if "message" in whole:
        whole["message"] = _joined([delta["message"] for delta in run])
    return _dumps(whole)


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for part in parts:
        whole.update(part)
    return whole | {name: "".join(part.get(name, "") for part in parts) for name in _TEXTS if name in whole}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _piece_chars() -> int:
    """Return how many characters fit into a chunk whatever they are."""
    return max(1, CHUNK_BYTES // _LONGEST_CHARACTER_BYTES)


def _fits(frames: Sequence[str]) -> bool:
    return sum(map(len, frames)) <= _piece_chars()


def _posted_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _finite(text: str) -> float | None:
    # A number too large for a float is read as infinity.
    value = float(text)
    return value if math.isfinite(value) else None


# One for all: json.loads would make a decoder for each text.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None, parse_float=_finite)


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
