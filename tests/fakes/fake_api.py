"""The routes of the fake server: Ollama's, and /fake/stats and /fake/script."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from aiohttp import web
from fake_anthropic import Anthropic, checked
from fake_driver import compile_for
from fake_model import embedding, packed, plan
from fake_request import Refused, answered, decoded, entry, form, raw, refusals, tagged, translated
from fake_script import Script
from fake_stream import Faults, send
from fake_wire import Native, OpenAi, dumps, now

BROKEN = "llama-server process has terminated: exit status 1: error loading model: the file is no model"


class Fake:
    """The state of the process: its script, what is loaded, what was asked."""

    def __init__(self, script: Script, models: Path) -> None:
        self.script = script
        self.models = models
        self.loaded: set[str] = set()
        self.child: subprocess.Popen[bytes] | None = None
        self.counts: Counter[str] = Counter()
        self.refused = 0
        self.last: dict[str, Any] = {}

    def application(self) -> web.Application:
        application = web.Application(client_max_size=1 << 30, middlewares=[refusals])
        application.add_routes(
            [
                web.get("/", self.root),
                web.get("/api/version", self.version),
                web.get("/api/tags", self.tags),
                web.get("/api/ps", self.ps, allow_head=False),
                web.get("/v1/models", self.v1_models, allow_head=False),
                web.get("/v1/models/{model}", self.v1_model, allow_head=False),
                web.get("/fake/stats", self.stats, allow_head=False),
                web.post("/fake/script", self.rewrite),
                web.post("/api/show", self.show),
                web.post("/api/pull", self.pull),
                web.delete("/api/delete", self.delete),
                web.post("/v1/messages", self.messages),
                web.post("/v1/audio/transcriptions", self.transcribe),
            ]
        )
        for path in ("/api/generate", "/api/chat", "/v1/completions", "/v1/chat/completions"):
            application.router.add_post(path, self.generate)
        for path in ("/api/embed", "/api/embeddings", "/v1/embeddings"):
            application.router.add_post(path, self.embed)
        return application

    @property
    def names(self) -> list[str]:
        paths = (self.models / "manifests").glob("*/*/*/*")
        stored = {"{}/{}/{}:{}".format(*path.parts[-4:]).removeprefix("registry.ollama.ai/") for path in paths}
        return sorted(set(self.script.catalogue) | {name.removeprefix("library/") for name in stored})

    async def root(self, _: web.Request) -> web.Response:
        return web.Response(text="Ollama is running")

    async def version(self, _: web.Request) -> web.Response:
        return answered({"version": "0.0.0-fake"})

    async def tags(self, _: web.Request) -> web.Response:
        # As in Ollama, the list knows less than /api/show does.
        more = {name: {"modified_at": now(), "capabilities": self.script.can(name)[:1]} for name in self.names}
        return answered({"models": [entry(name) | more[name] for name in self.names]})

    async def ps(self, _: web.Request) -> web.Response:
        vram = int(entry("")["size"] * self.script.vram_share)
        more = {"expires_at": "2319-03-12T03:31:08.658795871Z", "size_vram": vram, "context_length": 4096}
        return answered({"models": [entry(name) | more for name in sorted(self.loaded)]})

    async def show(self, request: web.Request) -> web.Response:
        body = await self.body(request)
        name = body.get("model") or body.get("name") or ""
        self.known(name, tagged(name))
        info = {"general.architecture": "fake", "fake.context_length": 4096, "tokenizer.ggml.tokens": None}
        details = entry(name)["details"]
        return answered(
            {"details": details, "model_info": info, "capabilities": self.script.can(name), "modified_at": now()}
        )

    async def pull(self, request: web.Request) -> web.StreamResponse:
        body = await self.body(request)
        error = {"error": "pull model manifest: file does not exist"}
        if body.get("stream") is False:
            return answered(error, 500)
        lines = dumps({"status": "pulling manifest"}) + b"\n" + dumps(error) + b"\n"
        return web.Response(body=lines, content_type=Native.content_type)

    async def delete(self, request: web.Request) -> web.Response:
        name = (await self.body(request)).get("model", "")
        self.known(name)
        left = {other: can for other, can in self.script.catalogue.items() if other != tagged(name)}
        self.script.models = ",".join(f"{other}={'+'.join(can)}" for other, can in left.items())
        return web.Response()

    async def v1_models(self, _: web.Request) -> web.Response:
        models = [{"id": name, "object": "model", "created": 1, "owned_by": "library"} for name in self.names]
        return answered({"object": "list", "data": models})

    async def v1_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        self.known(name, tagged(name))
        return answered({"id": name, "object": "model", "created": 1, "owned_by": "library"})

    async def stats(self, _: web.Request) -> web.Response:
        counts = {name: self.counts[name] for name in ("cancelled", "finished", "loads", "tokens")}
        requests = {path: count for path, count in self.counts.items() if path.startswith("/")}
        child = self.child.pid if self.child else None
        return answered({**counts, "requests": requests, "last": self.last, "pid": os.getpid(), "child_pid": child})

    async def rewrite(self, request: web.Request) -> web.Response:
        try:
            self.script.update(await request.json())
        except ValueError as error:
            raise Refused(400, str(error)) from error
        self.refused = 0
        return await self.stats(request)

    async def embed(self, request: web.Request) -> web.Response:
        body = await self.body(request)
        self.known(body["model"], text='model "{}" not found, try pulling it first')
        form = body.get("encoding_format", "float")
        if request.path.startswith("/v1") and (body.get("input") in (None, []) or form not in ("float", "base64")):
            raise Refused(400, "invalid input")
        texts = body.get("input") or body.get("prompt") or []
        texts = [texts] if isinstance(texts, str) else texts
        if texts and "embedding" not in self.script.can(body["model"]):
            status = 500 if request.path == "/api/embeddings" else 501
            raise Refused(status, "This server does not support embeddings. Start it with `--embeddings`")
        vectors = [embedding(text) for text in texts]
        if request.path == "/api/embeddings":
            return answered({"embedding": vectors[0] if vectors else []})
        if request.path == "/api/embed":
            counts = {"total_duration": 2, "load_duration": 1, "prompt_eval_count": len(texts)} if texts else {}
            return answered({"model": body["model"], "embeddings": vectors, **counts})
        shown = [packed(vector) for vector in vectors] if form == "base64" else vectors
        data = [{"object": "embedding", "embedding": vector, "index": index} for index, vector in enumerate(shown)]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return answered({"object": "list", "data": data, "model": body["model"], "usage": usage})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await self.body(request)
        chat, openai = "chat" in request.path, request.path.startswith("/v1")
        if openai and chat and not body.get("messages"):
            raise Refused(400, "[] is too short - 'messages'")
        if not body.get("model"):
            raise Refused(*((400, "model is required") if chat else (404, "model '' not found")))
        self.known(body["model"])
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        wire = OpenAi(body["model"], chat=chat, usage=usage) if openai else Native(body["model"], chat=chat)
        empty = not (body.get("messages") if chat else body.get("prompt"))
        if empty and body.get("keep_alive") == 0:
            self.loaded.discard(tagged(body["model"]))
            return raw(wire.nothing("unload"), wire.whole_type)
        asked = translated(body) if openai else body
        self.refuse(asked, "chat" if chat else "generate")
        if empty:
            return await self.counted(self.loading(wire, asked), answers=0)
        return await self.counted(self.answering(request, wire, {"stream": not openai, **asked}))

    async def messages(self, request: web.Request) -> web.StreamResponse:
        asked = checked(await self.body(request))
        self.known(asked["model"])
        self.refuse(asked, "chat")
        return await self.counted(self.answering(request, Anthropic(asked["model"]), asked))

    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        fields = await form(request)
        self.counts[request.path] += 1
        self.last[request.path] = fields
        self.known(fields["model"])
        self.refuse(fields, "chat")
        if "audio" not in self.script.can(fields["model"]):
            raise Refused(500, json.dumps({"error": {"code": 500, "message": "audio input is not supported"}}))
        await self.load(fields["model"])
        return answered({"text": self.script.text.strip()})

    async def loading(self, wire: Native | OpenAi, asked: dict[str, Any]) -> web.StreamResponse:
        await self.load(asked["model"])
        return raw(wire.nothing("load"), wire.whole_type)

    async def answering(
        self, request: web.Request, wire: Native | OpenAi | Anthropic, asked: dict[str, Any]
    ) -> web.StreamResponse:
        script = self.script
        load_s = await self.load(asked["model"])
        compile_for(asked, script.compiled_bytes)
        answer = plan(script, asked)
        if asked["stream"]:
            return await send(request, wire, answer, Faults(script, self.counts), load_s)
        await asyncio.sleep(script.first_token_delay_s)
        return raw(wire.whole(answer, answer.metrics(load_s)), wire.whole_type)

    async def counted(self, answering: Awaitable[web.StreamResponse], *, answers: int = 1) -> web.StreamResponse:
        try:
            response = await answering
        except asyncio.CancelledError:
            self.counts["cancelled"] += 1
            raise
        except ConnectionResetError:
            self.counts["cancelled"] += 1
            return web.Response()
        self.counts["finished"] += answers
        return response

    def refuse(self, asked: dict[str, Any], use: str) -> None:
        """Raise Refused for what the script or the model's capabilities do not allow."""
        script = self.script
        if script.refuse_status and (not script.refuse_times or self.refused < script.refuse_times):
            self.refused += 1
            raise Refused(script.refuse_status, script.refuse_error)
        can = script.can(asked["model"])
        if "embedding" in can:
            raise Refused(400, f'"{asked["model"]}" does not support {use}')
        if asked.get("think") and "thinking" not in can:
            raise Refused(400, f'"{asked["model"]}" does not support thinking')
        if asked.get("raw") and (asked.get("system") or asked.get("template")):
            raise Refused(400, "raw mode does not support template, system, or context")
        for field, capability in {"tools": "tools", "suffix": "insert"}.items():
            if asked.get(field) and capability not in can:
                full = f"registry.ollama.ai/library/{tagged(asked['model'])}"
                raise Refused(400, f"{full} does not support {capability}")
        if any(message.get("images") for message in [asked, *(asked.get("messages") or [])]):
            raise Refused(500, json.dumps({"error": {"code": 500, "message": "image input is not supported"}}))

    async def load(self, name: str) -> float:
        """Load a model if it is not loaded; return how long it took."""
        if tagged(name) in self.loaded:
            return 0
        await asyncio.sleep(self.script.load_s)
        broken = BROKEN if "broken" in self.script.can(name) else ""
        if error := self.script.load_error or broken:
            raise Refused(500, error)
        self.counts["loads"] += 1
        self.loaded.add(tagged(name))
        return self.script.load_s

    async def body(self, request: web.Request) -> dict[str, Any]:
        body = await decoded(request)
        self.counts[request.path] += 1
        self.last[request.path] = body
        return body

    def known(self, name: str, shown: str = "", text: str = "model '{}' not found") -> None:
        """Raise Refused 404 when there is no such model, 400 when no name was given."""
        if not name:
            raise Refused(400, "model is required")
        if tagged(name) not in self.names:
            raise Refused(404, text.format(shown or name))
