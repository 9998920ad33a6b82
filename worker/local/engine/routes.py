"""The engine's HTTP surface: which call goes where, and how its errors leave."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from worker.local.engine import body as shapes
from worker.local.engine import log, native, openai_answer, openai_request, reply
from worker.local.engine.body import Body
from worker.local.engine.embedding import Embedder
from worker.local.engine.library import Library
from worker.local.engine.native import Native
from worker.local.engine.reply import ApiError
from worker.local.engine.scheduler import Scheduler
from worker.local.engine.settings import Settings
from worker.local.engine.store import Store
from worker.names import ModelName

VERSION = "0.0.0-local"
MAX_BODY_BYTES = 1 << 30
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answers = AsyncGenerator[dict[str, Any]]


class Routes:
    """Every call of the API, as aiohttp handlers."""

    def __init__(self, settings: Settings, scheduler: Scheduler) -> None:
        """Serve the store of `settings` with the runners of `scheduler`."""
        self._library = Library(Store(settings.models))
        self._scheduler = scheduler
        self._native = Native(settings, self._library, scheduler)
        self._embedder = Embedder(settings, self._library, scheduler)

    def application(self) -> web.Application:
        """Return the application; its routes and methods are those of Ollama, the rest of Ollama's is 404."""
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_logged, _refused])
        router = application.router
        router.add_get("/", self._root, allow_head=True)
        router.add_get("/api/version", self._version, allow_head=True)
        router.add_get("/api/tags", self._tags, allow_head=True)
        router.add_get("/api/ps", self._ps, allow_head=False)
        router.add_post("/api/show", self._show)
        router.add_delete("/api/delete", self._delete)
        router.add_post("/api/pull", self._pull)
        router.add_post("/api/generate", self._generate)
        router.add_post("/api/chat", self._chat)
        router.add_post("/api/embed", self._embed)
        router.add_post("/api/embeddings", self._embeddings)
        router.add_get("/v1/models", self._v1_models, allow_head=False)
        router.add_get("/v1/models/{model}", self._v1_model, allow_head=False)
        router.add_post("/v1/chat/completions", self._v1_chat)
        router.add_post("/v1/completions", self._v1_completions)
        router.add_post("/v1/embeddings", self._v1_embeddings)
        return application

    async def _root(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="Ollama is running")

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return reply.as_json({"version": VERSION})

    async def _tags(self, _: web.Request) -> web.StreamResponse:
        return reply.as_json(await self._library.tags())

    async def _ps(self, _: web.Request) -> web.StreamResponse:
        models = [
            {
                "name": entry.model.name.short,
                "model": entry.model.name.short,
                "size": entry.runner.memory_bytes,
                "digest": entry.model.manifest.digest,
                "details": entry.model.details,
                "expires_at": reply.timestamp(entry.planned_end),
                # There is no video memory here, and saying otherwise would hide it from whoever asks.
                "size_vram": 0,
                "context_length": entry.runner.spec.options.context,
            }
            for entry in self._scheduler.loaded
        ]
        return reply.as_json({"models": models})

    async def _show(self, request: web.Request) -> web.StreamResponse:
        body = await Body.read(request, shapes.SHOW)
        name = body.model or body.text("name")
        return reply.as_json(await self._library.show(name, verbose=body.flag("verbose")))

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        body = await Body.read(request, shapes.DELETE)
        await self._library.delete(body.model or body.text("name"))
        return web.Response()

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        body = await Body.read(request, shapes.PULL)
        try:
            ModelName.parse(body.model or body.text("name"))
        except ValueError:
            raise ApiError(400, "invalid model name") from None

        async def answers() -> Answers:
            yield {"status": "pulling manifest"}
            # There is no registry here, so no name has a manifest.
            raise ApiError(500, "pull model manifest: file does not exist")

        return await _native(request, body, answers())

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await Body.read(request, shapes.GENERATE)
        return await _native(request, body, self._native.generate(body))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await Body.read(request, shapes.CHAT)
        return await _native(request, body, self._native.chat(body))

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        return reply.as_json(await self._embedder.embed(await Body.read(request, shapes.EMBED)))

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        return reply.as_json(await self._embedder.embeddings(await Body.read(request, shapes.EMBEDDINGS)))

    async def _v1_models(self, _: web.Request) -> web.StreamResponse:
        models = (await self._library.tags())["models"]
        data = [openai_answer.model(model["model"], model["modified_at"]) for model in models]
        return reply.as_json({"object": "list", "data": data or None}, content_type="application/json")

    async def _v1_model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["model"]
        shown = await self._library.show(name, verbose=False)
        return reply.as_json(openai_answer.model(name, shown["modified_at"]), content_type="application/json")

    async def _v1_chat(self, request: web.Request) -> web.StreamResponse:
        body = await Body.read(request, shapes.OPENAI_CHAT, "EOF")
        answers = self._native.chat(openai_request.chat(body))
        if body.flag("stream"):
            chunks = openai_answer.chat_chunks(answers, usage=_wants_usage(body))
            return await reply.as_stream(request, chunks, reply.SSE_TYPE)
        answer = openai_answer.chat(await _gathered(answers))
        return reply.as_json(answer, content_type="application/json")

    async def _v1_completions(self, request: web.Request) -> web.StreamResponse:
        body = await Body.read(request, shapes.OPENAI_COMPLETION, "EOF")
        answers = self._native.generate(openai_request.completion(body))
        if body.flag("stream"):
            chunks = openai_answer.completion_chunks(answers, usage=_wants_usage(body))
            return await reply.as_stream(request, chunks, reply.SSE_TYPE)
        answer = openai_answer.completion(await _gathered(answers))
        return reply.as_json(answer, content_type="application/json")

    async def _v1_embeddings(self, request: web.Request) -> web.StreamResponse:
        body = await Body.read(request, shapes.OPENAI_EMBED, "EOF")
        answer = await self._embedder.embed(openai_request.embedding(body))
        return reply.as_json(
            openai_answer.embeddings(answer, body.text("encoding_format")), content_type="application/json"
        )


async def _native(request: web.Request, body: Body, answers: Answers) -> web.StreamResponse:
    if not body.flag("stream", default=True):
        return reply.as_json(await _gathered(answers))
    async with aclosing(answers):
        first: dict[str, Any] = await anext(answers, {})
        if first.get("done_reason") in ("load", "unload"):
            # Nothing was generated, and then Ollama answers with one object whatever was asked for.
            return reply.as_json(first)
        return await reply.as_stream(request, reply.as_lines(first, answers), reply.NDJSON_TYPE)


async def _gathered(answers: Answers) -> dict[str, Any]:
    async with aclosing(answers):
        return native.gather([answer async for answer in answers])


def _wants_usage(body: Body) -> bool:
    return bool(body.get("stream_options", {}).get("include_usage"))


@web.middleware
async def _refused(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn a refusal into the error body of the API that was called."""
    try:
        return await handler(request)
    except ApiError as error:
        return openai_answer.error(error) if request.path.startswith("/v1/") else reply.as_error(error)
    except web.HTTPNotFound:
        return web.Response(status=404, body=b"404 page not found", content_type="text/plain")
    except web.HTTPMethodNotAllowed as error:
        return web.Response(status=405, body=b"405 method not allowed", headers={"Allow": error.headers["Allow"]})


@web.middleware
async def _logged(request: web.Request, handler: Handler) -> web.StreamResponse:
    began = time.monotonic()
    status = reply.CLIENT_CLOSED
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        log.access(status, time.monotonic() - began, request.remote or "", f"{request.method} {request.path}")
