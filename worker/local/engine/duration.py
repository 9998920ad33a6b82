"""Go's durations as Ollama reads them: `5m`, `1h30m`, `-1m`, plain seconds where Ollama allows them."""

from __future__ import annotations

import math
import re

UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
FOREVER_S = math.inf
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([^\d.]*)")
_DIGITS = re.compile(r"[+-]?\d+")


class DurationInvalid(ValueError):
    """The text is not a duration; the message is worded as Go words it."""


def parse(text: str) -> float:
    """Return seconds, negative ones too, of a Go duration; raise DurationInvalid for anything else."""
    body = text[1:] if text[:1] in ("+", "-") else text
    sign = -1 if text.startswith("-") else 1
    if body == "0":
        return 0.0
    total_ns, end = 0.0, 0
    for part in _PART.finditer(body):
        if part.start() != end:
            break
        number, unit = part.groups()
        if not unit:
            raise DurationInvalid(f'time: missing unit in duration "{text}"')
        if unit not in UNITS_NS:
            raise DurationInvalid(f'time: unknown unit "{unit}" in duration "{text}"')
        total_ns += float(number) * UNITS_NS[unit]
        end = part.end()
    if end == 0 or end != len(body):
        raise DurationInvalid(f'time: invalid duration "{text}"')
    return sign * total_ns / 1e9


def from_environment(text: str, default_s: float) -> float:
    """Return seconds of an environment value: a Go duration or whole seconds; else `default_s`. Negative is forever."""
    try:
        seconds = parse(text)
    except DurationInvalid:
        seconds = float(text) if _DIGITS.fullmatch(text) else default_s
    return FOREVER_S if seconds < 0 else seconds


def from_json(value: object) -> float:
    """Return seconds of a request's `keep_alive`: a number of seconds or a Go duration. Negative is forever."""
    if isinstance(value, str):
        seconds = parse(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise DurationInvalid(f"Unsupported type: '{_go_type(value)}'")
    return FOREVER_S if seconds < 0 else seconds


def _go_type(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    return "[]interface {}" if isinstance(value, list) else "map[string]interface {}"
