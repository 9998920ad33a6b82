"""What the first jobs after a thaw wait for: one look at whether the server still has its model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from worker import events
from worker.errors import JobError
from worker.proxy import Proxy
from worker.pulse import Pulse
from worker.residency import NO_TEXT

ASK_LIMIT_S = 10.0


class Thaw:
    """Looks after the server once whenever the process was frozen. Use it inside one event loop.

    A server that is gone is not its business: the job that waited meets it next, and says so.
    """

    def __init__(
        self, proxy: Proxy, writer: events.EventWriter, *, model: str, limit_s: float, pulse: Pulse | None = None
    ) -> None:
        """Keep `model`, by the server's name, resident; loading it again may take `limit_s` seconds."""
        self._proxy = proxy
        self._events = writer
        self._model = model
        self._limit_s = limit_s
        self._pulse = pulse or Pulse()
        self._pulse.start()
        self._look: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Notice nothing any more."""
        self._pulse.stop()

    async def settled(self) -> None:
        """Return at once, or after the look that a thaw asks for; jobs that come meanwhile wait for the same one."""
        missed_s = self._pulse.missed_s()
        if missed_s:
            self._events.write(events.ThawNoticed(missed_s=round(missed_s, 1)))
            if self._look is None:
                self._look = asyncio.create_task(self._look_after())
                self._look.add_done_callback(self._over)
        if self._look is not None:
            # A job that is stopped meanwhile must not stop the others'.
            await asyncio.shield(self._look)

    def _over(self, _: asyncio.Task[None]) -> None:
        self._look = None

    async def _look_after(self) -> None:
        try:
            reply = await asyncio.wait_for(self._sent("GET", "/api/ps", None), ASK_LIMIT_S)
            # Another model is there because a job asked for it: to put it out again would help nobody.
            if "models" in reply and not reply["models"]:
                await asyncio.wait_for(self._load(), self._limit_s)
        except (JobError, asyncio.TimeoutError):
            return

    async def _load(self) -> None:
        reply = await self._sent("POST", "/api/generate", {"model": self._model, "stream": False})
        if NO_TEXT in str(reply.get("error")):
            reply = await self._sent("POST", "/api/embed", {"model": self._model})
        if reply and "error" not in reply:
            self._events.write(events.ModelReloaded(model=self._model))

    async def _sent(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Return the object the server answers, an error being one too; empty when it is none."""
        text = None if body is None else json.dumps(body)
        async with self._proxy.call(method, path, text, "application/json") as response:
            answer = await self._proxy.head(response)
        try:
            value = json.loads(answer)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}
