"""Ollama's /api/generate and /api/chat: from a request's body to the objects of its answer."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from worker.local.engine import fit, generation, prompt
from worker.local.engine.body import Body
from worker.local.engine.generation import Piece
from worker.local.engine.library import Library
from worker.local.engine.model import Model
from worker.local.engine.options import Options
from worker.local.engine.reply import ApiError, timestamp
from worker.local.engine.scheduler import Scheduler
from worker.local.engine.settings import Settings

MAX_TOP_LOGPROBS = 20
NO_TEMPLATE = (
    "the local engine takes no template, it renders prompts by the GGUF's own: leave `template` out, "
    "or serve with a real Ollama (OLLAMA_BIN)"
)


class Native:
    """Answers generate and chat requests with streams of objects; the last one has `done` true."""

    def __init__(self, settings: Settings, library: Library, scheduler: Scheduler) -> None:
        """Serve the models of `library` with the runners of `scheduler`."""
        self._settings = settings
        self._library = library
        self._scheduler = scheduler

    async def generate(self, body: Body) -> AsyncGenerator[dict[str, Any]]:
        """Answer /api/generate. Without a prompt the model is only loaded, or unloaded when `keep_alive` is 0."""
        began = time.monotonic_ns()
        _check_logprobs(body)
        model = await self._library.find(body.model, (404, "model '' not found"))
        asked = body.text("prompt")
        raw = body.flag("raw")
        if not asked and body.keep_alive_s == 0:
            self._scheduler.expire(model)
            yield _head(body, response="") | {"done": True, "done_reason": "unload"}
            return
        if raw and (body.text("template") or body.text("system") or body.get("context")):
            raise ApiError(400, "raw mode does not support template, system, or context")
        if body.text("template"):
            raise ApiError(400, NO_TEMPLATE)
        _check_capabilities(body, model, "generate", ["insert"] if body.text("suffix") else [])
        body = _thinking(body, model)
        options = self._options(body, model)
        async with self._scheduler.use(model, options.runner, body.keep_alive_s) as runner:
            loaded = time.monotonic_ns()
            if not asked:
                yield _head(body, response="") | {"done": True, "done_reason": "load"}
                return
            text = asked if raw else await prompt.rendered(runner, body, model.system, model.messages)
            request = prompt.completion_request(body, options, text)
            if body.flag("truncate", default=True) and not body.get("images"):
                request["prompt"] = await fit.shortened(runner, text, options.sampling["n_keep"])
            async with aclosing(generation.complete(runner, request)) as pieces:
                async for piece in pieces:
                    text += piece.text
                    result = _head(body, response=piece.text) | _ending(piece, began, loaded)
                    if piece.reason and not raw:
                        result["context"] = await prompt.tokens(runner, text)
                    yield result

    async def chat(self, body: Body) -> AsyncGenerator[dict[str, Any]]:
        """Answer /api/chat. Without messages the model is only loaded, or unloaded when `keep_alive` is 0."""
        began = time.monotonic_ns()
        _check_logprobs(body)
        messages = body.messages
        model = await self._library.find(body.model)
        empty = {"role": "assistant", "content": ""}
        if not messages and body.keep_alive_s == 0:
            self._scheduler.expire(model)
            yield _head(body, message=empty) | {"done": True, "done_reason": "unload"}
            return
        tools = body.get("tools", [])
        _check_capabilities(body, model, "chat", ["tools"] if tools else [])
        body = _thinking(body, model)
        options = self._options(body, model)
        async with self._scheduler.use(model, options.runner, body.keep_alive_s) as runner:
            loaded = time.monotonic_ns()
            if not messages:
                yield _head(body, message=empty) | {"done": True, "done_reason": "load"}
                return
            request = prompt.chat_request(body, options, _with_system(messages, model))
            if body.flag("truncate", default=True) and len(messages) > 1:
                request = await fit.recent(runner, request)
            async with aclosing(generation.chat(runner, request)) as pieces:
                async for piece in pieces:
                    yield _head(body, message=_message(piece)) | _ending(piece, began, loaded)

    def _options(self, body: Body, model: Model) -> Options:
        layers = [model.options, body.get("options", {})]
        shift = body.flag("shift", default=True)
        return Options.merge(layers, self._settings.context_length, model.train_context, shift=shift)


def gather(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the objects of a streamed answer into the one object of an answer that is not streamed."""
    last = dict(pieces[-1])
    logprobs = [entry for piece in pieces for entry in piece.get("logprobs", [])]
    if "message" in last:
        messages = [piece["message"] for piece in pieces]
        joined = last["message"] | {"content": "".join(message["content"] for message in messages)}
        thinking = "".join(message.get("thinking", "") for message in messages)
        last["message"] = joined | ({"thinking": thinking} if thinking else {})
    else:
        last["response"] = "".join(piece["response"] for piece in pieces)
    return last | ({"logprobs": logprobs} if logprobs else {})


def _head(body: Body, **content: Any) -> dict[str, Any]:
    return {"model": body.model, "created_at": timestamp(), **content, "done": False}


def _ending(piece: Piece, began_ns: int, loaded_ns: int) -> dict[str, Any]:
    logprobs = {"logprobs": piece.logprobs} if piece.logprobs else {}
    if piece.reason is None:
        return logprobs
    total = {"total_duration": time.monotonic_ns() - began_ns, "load_duration": loaded_ns - began_ns}
    # Go leaves numbers out that are zero.
    metrics = {name: value for name, value in {**total, **piece.metrics}.items() if value}
    return {"done": True, "done_reason": piece.reason, **metrics, **logprobs}


def _check_logprobs(body: Body) -> None:
    if not 0 <= body.get("top_logprobs", 0) <= MAX_TOP_LOGPROBS:
        raise ApiError(400, "top_logprobs must be between 0 and 20")


def _check_capabilities(body: Body, model: Model, use: str, wanted: list[str]) -> None:
    if model.fault:
        raise ApiError(500, model.fault)
    has = model.capabilities
    if body.think and "thinking" not in has:
        raise ApiError(400, f'"{body.model}" does not support thinking')
    if "completion" not in has:
        raise ApiError(400, f'"{body.model}" does not support {use}')
    missing = [name for name in wanted if name not in has]
    if missing:
        raise ApiError(400, f"{model.name.full} does not support {missing[0]}")


def _thinking(body: Body, model: Model) -> Body:
    """Return the request with thinking asked for, when the model can and nothing was said."""
    silent = body.think is None and "thinking" in model.capabilities
    return Body({**body.fields, "think": True}) if silent else body


def _with_system(messages: list[dict[str, Any]], model: Model) -> list[dict[str, Any]]:
    wanted = model.system and messages[0]["role"] != "system"
    first = [{"role": "system", "content": model.system}] if wanted else []
    return first + model.messages + messages


def _message(piece: Piece) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": piece.text}
    message |= {"thinking": piece.thinking} if piece.thinking else {}
    return message | ({"tool_calls": piece.tool_calls} if piece.tool_calls else {})
