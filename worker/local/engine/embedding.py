"""Ollama's /api/embed and /api/embeddings."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any

from worker.local.engine.body import Body
from worker.local.engine.library import UNNAMED, Library
from worker.local.engine.model import Model
from worker.local.engine.options import Options
from worker.local.engine.reply import ApiError
from worker.local.engine.runner import Runner
from worker.local.engine.scheduler import Scheduler
from worker.local.engine.settings import Settings

ABSENT = 'model "{}" not found, try pulling it first'
TOO_LONG = "the input length exceeds the context length"
# How llama.cpp says that an input does not fit.
_TOO_LONG_WORDS = ("too large", "context size", "context length", "physical batch size")


class Embedder:
    """Answers embedding requests."""

    def __init__(self, settings: Settings, library: Library, scheduler: Scheduler) -> None:
        """Serve the models of `library` with the runners of `scheduler`."""
        self._settings = settings
        self._library = library
        self._scheduler = scheduler

    async def embed(self, body: Body) -> dict[str, Any]:
        """Answer /api/embed: one unit-length vector per input, cut to `dimensions` when that is given."""
        began = time.monotonic_ns()
        inputs = _inputs(body.fields.get("input"))
        model = await self._library.find(body.model, (404, "model '' not found"), ABSENT)
        options = self._options(body, model)
        async with self._scheduler.use(model, options.runner, body.keep_alive_s) as runner:
            loaded = time.monotonic_ns()
            if not inputs:
                return {"model": body.model, "embeddings": []}
            cut = _Cut(options.runner.context, truncate=body.flag("truncate", default=True))
            found = await asyncio.gather(*(_embedding(runner, text, cut) for text in inputs))
        width = body.get("dimensions", 0)
        return {
            "model": body.model,
            "embeddings": [normalized(normalized(vector)[: width or None]) for vector, _ in found],
            "total_duration": time.monotonic_ns() - began,
            "load_duration": loaded - began,
            "prompt_eval_count": sum(tokens for _, tokens in found),
        }

    async def embeddings(self, body: Body) -> dict[str, Any]:
        """Answer the older /api/embeddings: one vector; none without a prompt, which only loads the model."""
        model = await self._library.find(body.model, UNNAMED, ABSENT)
        options = self._options(body, model)
        async with self._scheduler.use(model, options.runner, body.keep_alive_s) as runner:
            if not body.text("prompt"):
                return {"embedding": []}
            try:
                vector, _ = await runner.embed(body.text("prompt"))
            except ApiError as error:
                raise ApiError(500, _refusal(error).message) from error
        return {"embedding": vector}

    def _options(self, body: Body, model: Model) -> Options:
        if model.head is None:
            raise ApiError(500, model.fault) if model.fault else ApiError(404, ABSENT.format(body.model))
        layers = [model.options, body.get("options", {})]
        return Options.merge(layers, self._settings.context_length, model.train_context)


class _Cut:
    """How long an input may be, in tokens, and whether longer ones are cut or refused."""

    def __init__(self, limit: int, *, truncate: bool) -> None:
        # Room for the two marks a tokenizer may add around the text.
        self.limit = limit - 2
        self.truncate = truncate


async def _embedding(runner: Runner, text: str, cut: _Cut) -> tuple[list[float], int]:
    tokens = (await runner.call("/tokenize", {"content": text, "add_special": False}))["tokens"]
    if len(tokens) > cut.limit:
        if not cut.truncate:
            raise ApiError(400, TOO_LONG)
        text = (await runner.call("/detokenize", {"tokens": tokens[: cut.limit]}))["content"]
    try:
        return await runner.embed(text)
    except ApiError as error:
        raise _refusal(error) from error


def normalized(vector: list[float]) -> list[float]:
    """Scale `vector` to unit length; raise ApiError 400 when it holds no numbers."""
    if not all(map(math.isfinite, vector)):
        raise ApiError(400, "embedding contains NaN or Inf values")
    length = max(math.sqrt(sum(value * value for value in vector)), 1e-12)
    return [value / length for value in vector]


def _inputs(value: Any) -> list[str]:
    inputs = [value] if isinstance(value, str) else value
    if inputs is None or inputs == [""]:
        return [] if value is None or isinstance(value, str) else [""]
    if not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs):
        raise ApiError(400, "invalid input type")
    return inputs


def _refusal(error: ApiError) -> ApiError:
    """Return llama-server's refusal with the sentence inside its error body, and one status and text for too long."""
    try:
        message = str(json.loads(error.message)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = error.message
    too_long = any(words in message for words in _TOO_LONG_WORDS)
    return ApiError(400, TOO_LONG) if too_long else ApiError(error.status, message)
