"""Which models are loaded: on demand, one load at a time, unloaded by keep-alive or to make room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import aiohttp

from worker.local.engine import duration, log
from worker.local.engine.model import Model
from worker.local.engine.options import RunnerOptions
from worker.local.engine.reply import ApiError
from worker.local.engine.runner import Runner, RunnerSpec
from worker.local.engine.settings import Settings

BUSY = "server busy, please try again.  maximum pending requests exceeded"
# What Ollama's arithmetic with the largest possible duration comes to.
FOREVER = timedelta(microseconds=(2**63 - 1) // 1000)


@dataclass
class Loaded:
    """A model in memory, how many requests use it, and when it goes."""

    model: Model
    runner: Runner
    keep_alive_s: float
    users: int = 0
    expires_at: datetime | None = None
    timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        """Forget the planned end."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @property
    def planned_end(self) -> datetime:
        """Return when the model goes if nobody asks for it again."""
        if self.expires_at is not None:
            return self.expires_at
        keep = FOREVER if self.keep_alive_s == duration.FOREVER_S else timedelta(seconds=self.keep_alive_s)
        return datetime.now(timezone.utc) + keep


class Scheduler:
    """Owns every runner."""

    def __init__(self, settings: Settings, http: aiohttp.ClientSession) -> None:
        """Start with nothing loaded."""
        self._settings = settings
        self._http = http
        self._loaded: dict[str, Loaded] = {}
        self._loading = asyncio.Lock()
        self._waiting = 0
        self._idle = asyncio.Event()
        self._unloads: set[asyncio.Task[None]] = set()

    @property
    def loaded(self) -> list[Loaded]:
        """Return what is in memory, the longest-lived first."""
        return sorted(self._loaded.values(), key=lambda entry: entry.planned_end, reverse=True)

    @asynccontextmanager
    async def use(self, model: Model, options: RunnerOptions, keep_alive_s: float | None) -> AsyncIterator[Runner]:
        """Lend the model's runner, loading it first if need be; `keep_alive_s` None leaves the configured time.

        Raises ApiError 503 when too many loads are waiting, 500 when the load fails.
        """
        entry = await self._entry(model, options)
        entry.stop_timer()
        entry.expires_at = None
        if keep_alive_s is not None:
            entry.keep_alive_s = keep_alive_s
        entry.users += 1
        try:
            yield entry.runner
        finally:
            entry.users -= 1
            self._released(entry)

    def expire(self, model: Model) -> None:
        """Unload the model as soon as nobody uses it."""
        entry = self._loaded.get(str(model.path))
        if entry is not None:
            entry.keep_alive_s = 0
            entry.expires_at = datetime.now(timezone.utc)
            self._released(entry)

    async def close(self) -> None:
        """Stop every runner."""
        entries = list(self._loaded.values())
        self._loaded.clear()
        for entry in entries:
            entry.stop_timer()
        await asyncio.gather(*(entry.runner.stop() for entry in entries), *self._unloads)

    async def _entry(self, model: Model, options: RunnerOptions) -> Loaded:
        entry = self._usable(model, options)
        if entry is not None:
            return entry
        if self._loading.locked() and self._waiting >= self._settings.max_queue:
            raise ApiError(503, BUSY)
        self._waiting += 1
        try:
            await self._loading.acquire()
        finally:
            self._waiting -= 1
        try:
            return self._usable(model, options) or await self._load(model, options)
        finally:
            self._loading.release()

    def _usable(self, model: Model, options: RunnerOptions) -> Loaded | None:
        entry = self._loaded.get(str(model.path))
        return entry if entry is not None and entry.runner.alive and entry.runner.spec.options == options else None

    async def _load(self, model: Model, options: RunnerOptions) -> Loaded:
        stale = self._loaded.get(str(model.path))
        if stale is not None:
            await self._make_room(stale)
        while len(self._loaded) >= self._settings.max_loaded:
            await self._make_room(min(self._loaded.values(), key=lambda entry: (entry.users > 0, entry.keep_alive_s)))
        spec = RunnerSpec(str(model.path), options, model.slots(self._settings.parallel), model.is_embedding)
        runner = await Runner.start(spec, self._http, self._settings.load_timeout_s)
        log.info("template selection", model=model.name.full, selected="gguf_chat_template")
        entry = Loaded(model, runner, self._settings.keep_alive_s)
        self._loaded[str(model.path)] = entry
        log.info("loaded runners", count=len(self._loaded))
        return entry

    async def _make_room(self, entry: Loaded) -> None:
        """Wait until nobody uses `entry`, then unload it."""
        while entry.users:
            self._idle.clear()
            await self._idle.wait()
        await self._unload(entry)

    def _released(self, entry: Loaded) -> None:
        if entry.users or self._loaded.get(str(entry.model.path)) is not entry:
            return
        self._idle.set()
        entry.stop_timer()
        if entry.keep_alive_s <= 0:
            self._start_unload(entry)
        elif entry.keep_alive_s == duration.FOREVER_S:
            entry.expires_at = datetime.now(timezone.utc) + FOREVER
        else:
            entry.expires_at = datetime.now(timezone.utc) + timedelta(seconds=entry.keep_alive_s)
            entry.timer = asyncio.get_running_loop().call_later(entry.keep_alive_s, self._start_unload, entry)

    def _start_unload(self, entry: Loaded) -> None:
        task = asyncio.create_task(self._unload(entry))
        self._unloads.add(task)
        task.add_done_callback(self._unloads.discard)

    async def _unload(self, entry: Loaded) -> None:
        if entry.users == 0 and self._loaded.get(str(entry.model.path)) is entry:
            entry.stop_timer()
            del self._loaded[str(entry.model.path)]
            began = time.monotonic()
            await entry.runner.stop()
            log.info("runner stopped", model=entry.model.name.short, seconds=f"{time.monotonic() - began:.3f}")
