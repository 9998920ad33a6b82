"""The fields of a job in the stock worker's shape: their types, and where misplaced ones belong."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from worker.errors import JobInvalid

# name: (accepted JSON types, words for them); the server checks what is inside.
FIELDS: dict[str, tuple[tuple[type, ...], str]] = {
    "model": ((str,), "a string"),
    "prompt": ((str,), "a string"),
    "messages": ((list,), "a list of messages"),
    "stream": ((bool,), "true or false"),
    "options": ((dict,), "an object"),
    "tools": ((list,), "a list of tools"),
    "format": ((str, dict), '"json" or a JSON schema'),
    "system": ((str,), "a string"),
    "template": ((str,), "a string"),
    "keep_alive": ((str, int, float), "a duration"),
    "images": ((list,), "a list of base64 strings"),
    "think": ((bool, str), "true, false or a level"),
    "suffix": ((str,), "a string"),
    "raw": ((bool,), "true or false"),
    "logprobs": ((bool,), "true or false"),
    "top_logprobs": ((int,), "a number"),
}
OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "num_predict",
    "num_ctx",
    "stop",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "num_gpu",
    "num_batch",
    "num_keep",
    "num_thread",
    "typical_p",
    "repeat_last_n",
)
HINT = "See Jobs in the README for what a job may look like"
_CHAT_ONLY = ("tools",)
_PROMPT_ONLY = ("images", "suffix", "raw")
# What other APIs call an option: the server ignores an option it does not know.
_OPTION_ELSEWHERE = {
    "max_tokens": "num_predict",
    "max_new_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
}


def check(given: Mapping[str, Any]) -> None:
    """Raise JobInvalid unless `given` is a chat or a prompt whose fields are known, typed and go together."""
    for name, value in given.items():
        _check_field(name, value)
    chat, prompt = "messages" in given, "prompt" in given
    if chat and prompt:
        raise JobInvalid("input has both 'messages' and 'prompt'", "Send one of them")
    if not chat and not prompt:
        raise JobInvalid("input has neither 'messages' nor 'prompt'", HINT)
    for name in _PROMPT_ONLY if chat else _CHAT_ONLY:
        if name in given:
            raise JobInvalid(f"'{name}' does not go with '{'messages' if chat else 'prompt'}'", HINT)


def meant(name: object, known: Mapping[str, Any]) -> str:
    """Return a question that names the known name nearest to `name`, or nothing."""
    near = difflib.get_close_matches(str(name), known, n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def kind(value: object) -> str:
    """Return what JSON calls a value, with its article."""
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "a string", bool: "true/false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _check_field(name: str, value: object) -> None:
    if name not in FIELDS:
        option = _OPTION_ELSEWHERE.get(name, name)
        if option in OPTIONS:
            raise JobInvalid(f"'{name}' is not a field of the input", f"Put it into 'options': {{\"{option}\": …}}")
        raise JobInvalid(f"unknown field {name!r:.80}{meant(name, FIELDS)}", HINT)
    types, words = FIELDS[name]
    # bool is an int in Python, not in JSON.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise JobInvalid(f"'{name}' must be {words}, got {kind(value)}", HINT)
