"""Values of variables that the server cannot read: it takes its own defaults for them and hardly says so; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The server's own words for a truth.
GO_TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})
GO_FALSE = frozenset({"0", "f", "F", "false", "False", "FALSE"})
_DURATION = re.compile(r"[+-]?(\d+|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_LARGEST = 2**64 - 1
_LONGEST_POLL_MS = 1000
_NUMBER = "no whole number, as 8192"
_TIME = "no duration, as 30m or -1"
_FLAG = "neither 1 nor 0"
_KINDS = {
    "OLLAMA_CONTEXT_LENGTH": _NUMBER,
    "OLLAMA_MAX_LOADED_MODELS": _NUMBER,
    "OLLAMA_MAX_QUEUE": _NUMBER,
    "OLLAMA_GPU_OVERHEAD": _NUMBER,
    "OLLAMA_KEEP_ALIVE": _TIME,
    "OLLAMA_LOAD_TIMEOUT": _TIME,
    "OLLAMA_FLASH_ATTENTION": _FLAG,
    "OLLAMA_NOPRUNE": _FLAG,
    "OLLAMA_NO_CLOUD": _FLAG,
    "OLLAMA_VULKAN": _FLAG,
}
# What the patches read takes no quotes and no blanks.
_OF_PATCHES = {
    "OLLAMA_LOAD_POLL_MS": f"no whole number from 1 to {_LONGEST_POLL_MS}",
    "OLLAMA_SKIP_WARMUP": _FLAG,
    "OLLAMA_DISCOVER_ONCE": _FLAG,
    "OLLAMA_EXACT_NAMES": _FLAG,
    "OLLAMA_CACHE_IS_FREE": _FLAG,
}


def fault(name: str, value: str) -> str:
    """Return what is wrong with a value as the server reads it, as in "no whole number", or ""."""
    if name in _OF_PATCHES:
        kind = _OF_PATCHES[name]
        polled = value.isascii() and value.isdecimal() and 1 <= int(value) <= _LONGEST_POLL_MS
        return "" if (_is_flag(value) if kind == _FLAG else polled) else kind
    kind = _KINDS.get(name, "")
    text = value.strip().strip("\"'")
    if not text:
        return ""
    if kind == _NUMBER:
        return "" if text.isascii() and text.isdecimal() and int(text) <= _LARGEST else kind
    if kind == _TIME:
        return "" if _DURATION.fullmatch(text) else kind
    return kind if kind == _FLAG and not _is_flag(text) else ""


def notes(environ: Mapping[str, str], chosen: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable whose value is ignored; `chosen` has what the worker sets instead."""
    found = []
    for name, value in sorted(environ.items()):
        if value.strip() and (wrong := fault(name, value)):
            instead = f"the worker sets {chosen[name]}" if name in chosen else "Ollama takes its own default"
            found.append(f"{name}={value!r:.80} is ignored, because it is {wrong}: {instead}")
    return found


def _is_flag(text: str) -> bool:
    return text in GO_TRUE or text in GO_FALSE
