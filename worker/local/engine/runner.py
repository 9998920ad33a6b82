"""The engine's end of one runner process: start, watch its log, send it requests, stop it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from worker.local.engine import log
from worker.local.engine.options import RunnerOptions
from worker.local.engine.reply import ApiError, dumps

LOG_LINE_LIMIT = 1 << 20
STOPPED = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, "
    "check ollama server logs for details"
)
_STAMP = re.compile(r"^\d+\.\d{2}\.\d{3}\.\d{3} [A-Z] ")
_BUFFER = re.compile(r"buffer size = +([\d.]+) MiB")
# The beginnings of what llama.cpp says when it gives up; Ollama looks for the same words.
_FAILURE = re.compile(r"(?:error loading model|GGML_ASSERT|llama_init_from_model:|error:).*")


@dataclass(frozen=True)
class RunnerSpec:
    """What a runner is started with."""

    path: str
    options: RunnerOptions
    slots: int
    embedding: bool

    @property
    def argv(self) -> list[str]:
        """Return the command line of the runner process."""
        options = self.options
        argv = [sys.executable, "-m", "worker.local.engine", "runner", "--model", self.path]
        argv += ["-c", str(options.context * self.slots), "-np", str(self.slots), "-b", str(options.batch)]
        argv += ["-t", str(options.threads)] if options.threads else []
        argv += ["--embedding"] if self.embedding else []
        return argv + (["--context-shift"] if options.shift else [])


class Runner:
    """One loaded model in its own process."""

    def __init__(self, spec: RunnerSpec, process: Process, http: aiohttp.ClientSession) -> None:
        """Own `process`, which was started from `spec`."""
        self.spec = spec
        self.memory_bytes = 0
        self._process = process
        self._http = http
        self._url = ""
        self._failure = ""
        self._lost = False
        self._heard_at = time.monotonic()
        self._slots = asyncio.Semaphore(spec.slots)
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, spec: RunnerSpec, http: aiohttp.ClientSession, stall_s: float) -> Runner:
        """Load a model; raise ApiError 500 with llama.cpp's words when it cannot be loaded, or is silent for `stall_s`.

        Being cancelled kills the process.
        """
        log.info("starting llama-server", cmd=" ".join(spec.argv))
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *spec.argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LOG_LINE_LIMIT
        )
        runner = cls(spec, process, http)
        try:
            log.info("loading model via llama-server", model=spec.path)
            log.info("waiting for llama-server to start responding")
            await runner._until_listening(stall_s)
        except asyncio.CancelledError:
            log.warn("client connection closed before llama-server finished loading, aborting load")
            await runner.stop()
            raise
        except ApiError:
            await runner.stop()
            raise
        log.info(f"llama-server started in {time.monotonic() - began:.2f} seconds")
        return runner

    @property
    def alive(self) -> bool:
        """Say whether the process still runs and answered the last time it was asked."""
        return self._process.returncode is None and not self._lost

    async def stop(self) -> None:
        """Kill the process and wait until it is gone; a model has nothing to save."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._listener
        # Without this the pipe's transport outlives the event loop.
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Send a streaming request when a slot is free and yield its events; leaving the loop frees the slot.

        Raises ApiError with llama-server's own status and body when it refuses.
        """
        async with self._slots, self._post(path, body) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: ") and line != b"data: [DONE]":
                        yield json.loads(line[6:])

    async def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request that is answered at once and return its JSON."""
        async with self._post(path, body) as response:
            result: dict[str, Any] = await response.json()
            return result

    async def embed(self, text: str) -> tuple[list[float], int]:
        """Return the embedding of `text` and its length in tokens."""
        async with self._slots:
            answer = await self.call("/v1/embeddings", {"input": text})
        return answer["data"][0]["embedding"], answer["usage"]["prompt_tokens"]

    @asynccontextmanager
    async def _post(self, path: str, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.post(self._url + path, data=dumps(body), headers=headers) as response:
                if response.status >= 400:  # noqa: PLR2004 - where HTTP's errors begin
                    raise ApiError(response.status, (await response.text()).strip())
                yield response
        except aiohttp.ClientConnectorError as error:
            self._lost = True
            raise ApiError(500, STOPPED) from error
        except aiohttp.ClientError as error:
            self._lost = True
            raise ApiError(500, f"an error was encountered while running the model: {error}") from error

    async def _until_listening(self, stall_s: float) -> None:
        stdout = self._process.stdout
        if stdout is None:
            raise ApiError(500, STOPPED)
        address = asyncio.ensure_future(stdout.readline())
        try:
            while not address.done():
                quiet_s = time.monotonic() - self._heard_at
                if quiet_s >= stall_s:
                    raise ApiError(500, f"timed out waiting for llama-server to start - {self._failure}")
                await asyncio.wait({address}, timeout=None if stall_s == float("inf") else stall_s - quiet_s)
        finally:
            address.cancel()
        self._url = address.result().decode().strip()
        if not self._url:
            code = await self._process.wait()
            await self._listener
            reason = f"exit status {code}: {self._failure}" if self._failure else f"exit status {code}"
            raise ApiError(500, f"llama-server process has terminated: {reason}")

    async def _listen(self) -> None:
        stderr = self._process.stderr
        while stderr is not None and (line := await stderr.readline()):
            self._heard_at = time.monotonic()
            text = _STAMP.sub("", line.decode("utf-8", "replace").rstrip())
            log.raw(text)
            if failure := _FAILURE.search(text):
                self._failure = failure.group()
            if buffer := _BUFFER.search(text):
                self.memory_bytes += int(float(buffer.group(1)) * (1 << 20))
