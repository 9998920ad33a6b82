"""worker-vllm's `sampling_params` in Ollama's words, where both mean the same; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.errors import JobInvalid
from worker.fields import kind, meant

# vLLM's name: the option of the same meaning.
SAME = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "max_tokens": "num_predict",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}
WHOLE_TEXT_TOKENS = 32_768
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
# What the server has no counterpart for: the value that asks for nothing.
NEUTRAL: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1,
    "early_stopping": False,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "logit_bias": {},
    "allowed_token_ids": [],
    "bad_words": [],
    "prompt_logprobs": 0,
    "truncate_prompt_tokens": 0,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}
_INSTEAD = {
    "guided_decoding": "Put the JSON schema into 'format'",
    "structured_outputs": "Put the JSON schema into 'format'",
    "n": "Send one job for each answer",
    "best_of": "Send one job for each answer",
}
# worker-vllm's own fields beside sampling_params.
_BATCHING = ("max_batch_size", "min_batch_size", "batch_size_growth_factor")


def mapped(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input `given` with `sampling_params` moved into `options`, `logprobs` and `top_logprobs`.

    Raises:
        JobInvalid: a parameter is unknown, has no counterpart, or is given twice; it is named.
    """
    rest = {name: value for name, value in given.items() if name != "sampling_params"}
    params = given.get("sampling_params")
    for name in _BATCHING:
        if name in rest:
            raise JobInvalid(f"'{name}' is not needed here", "Leave it out: chunks grow by themselves on a slow line")
    if params is None:
        return rest
    if not isinstance(params, Mapping):
        raise JobInvalid(f"'sampling_params' must be an object, got {kind(params)}")
    asked = {name: value for name, value in params.items() if value is not None}
    for name, value in asked.items():
        _check(name, value)
    options = {SAME[name]: value for name, value in asked.items() if name in SAME}
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    if any(name in asked for name in _PENALTIES):
        # vLLM looks at the whole text, Ollama by default at the last 64 tokens. Its own word for "all", -1, is refused
        # by newer llama-servers, and the window is allocated: this covers the text of any usual request.
        options["repeat_last_n"] = WHOLE_TEXT_TOKENS
    rest["options"] = _together(rest.get("options"), options)
    return _logprobs(rest, asked.get("logprobs"))


def _check(name: str, value: Any) -> None:
    if name in SAME or name == "logprobs":
        return
    if name in NEUTRAL:
        neutral = NEUTRAL[name]
        if value == neutral and isinstance(value, bool) == isinstance(neutral, bool):
            return
    elif name not in _INSTEAD:
        known = {**SAME, **NEUTRAL, **_INSTEAD, "logprobs": None}
        raise JobInvalid(f"unknown sampling parameter {name!r:.80}{meant(name, known)}")
    raise JobInvalid(f"sampling parameter '{name}' has no counterpart in Ollama", _INSTEAD.get(name, "Leave it out"))


def _together(given: Any, options: dict[str, Any]) -> Any:
    if given is None:
        return options
    if not isinstance(given, Mapping):
        return given
    twice = sorted(given.keys() & options.keys() - {"repeat_last_n"})
    if twice:
        raise JobInvalid(f"'{twice[0]}' is given twice, in 'options' and in 'sampling_params'", "Send it once")
    return {**options, **given}


def _logprobs(rest: dict[str, Any], count: Any) -> dict[str, Any]:
    """In vLLM one number says both whether and how many."""
    if count is None:
        return rest
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise JobInvalid("sampling parameter 'logprobs' must be a number from 0 on")
    return {"logprobs": True, "top_logprobs": count, **rest}
