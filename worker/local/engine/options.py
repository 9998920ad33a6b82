"""The `options` of a request: Ollama's defaults, what the model's params layer adds, what the request overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.local.engine.reply import ApiError

DEFAULTS: dict[str, Any] = {
    "num_keep": 4, "seed": -1, "num_predict": -1, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "typical_p": 1.0,
    "repeat_last_n": 64, "temperature": 0.8, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "stop": [],
}  # fmt: skip
RUNNER_DEFAULTS: dict[str, Any] = {"num_ctx": 0, "num_batch": 512, "num_thread": 0}
# Known to Ollama, without meaning here: there is no GPU, no draft model, and mmap is llama.cpp's own choice.
IGNORED: dict[str, Any] = {"num_gpu": -1, "main_gpu": 0, "use_mmap": True, "draft_num_predict": 0}
_KINDS = {float: "float32", int: "integer", bool: "boolean", list: "array"}
MIN_CONTEXT = 4
# Ollama bounds open-ended answers to several full contexts.
MAX_CONTEXTS_PER_ANSWER = 10


@dataclass(frozen=True)
class RunnerOptions:
    """Options that belong to a loaded model: changing one reloads it."""

    context: int
    batch: int
    threads: int
    shift: bool = True


@dataclass(frozen=True)
class Options:
    """Checked options: `sampling` in llama-server's words, `runner` for the load."""

    sampling: dict[str, Any]
    runner: RunnerOptions

    @classmethod
    def merge(
        cls, layers: list[Mapping[str, Any]], default_context: int, train_context: int = 0, *, shift: bool = True
    ) -> Options:
        """Merge `layers`, the last one wins; unknown names are dropped, wrong types raise ApiError 500 as in Ollama."""
        merged = {**DEFAULTS, **RUNNER_DEFAULTS, "num_ctx": default_context}
        for layer in layers:
            merged.update(_checked(layer))
        context = max(MIN_CONTEXT, merged.pop("num_ctx"))
        context = min(context, train_context) if train_context else context
        runner = RunnerOptions(context, merged.pop("num_batch"), merged.pop("num_thread"), shift)
        limit = MAX_CONTEXTS_PER_ANSWER * context
        predict = merged.pop("num_predict")
        merged["n_predict"] = limit if predict < 0 else min(predict, limit)
        merged["n_keep"] = merged.pop("num_keep")
        return cls(merged, runner)


def _checked(layer: Mapping[str, Any]) -> dict[str, Any]:
    known = {**DEFAULTS, **RUNNER_DEFAULTS, **IGNORED}
    result: dict[str, Any] = {}
    for name, value in layer.items():
        if name not in known or value is None:
            continue
        kind = type(known[name])
        if kind is list and isinstance(value, list):
            if not all(isinstance(item, str) for item in value):
                raise ApiError(500, f'option "{name}" must be of an array of strings')
        elif not _is(value, kind):
            raise ApiError(500, f'option "{name}" must be of type {_KINDS[kind]}')
        if name not in IGNORED:
            result[name] = int(value) if kind is int else value
    return result


def _is(value: Any, kind: type) -> bool:
    if kind in (int, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind)
