"""An event loop in a thread of its own that answers HTTP, from before the boot until the very end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.errors import ConfigInvalid

if TYPE_CHECKING:
    from aiohttp import web

ANYWHERE = "0.0.0.0"  # noqa: S104 - a load balancer calls from outside the container
CLOSE_LIMIT_S = 5.0
# Handlers are cancelled before the thread is closed; what is left then is a client that reads slowly.
LINGER_S = 0.5


@dataclass(frozen=True)
class Site:
    """A port, and what makes the application that answers there; it is made inside the thread's loop."""

    port: int
    application: Callable[[], web.Application]


class HttpThread:
    """Serves sites. Their ports are open when the constructor returns; the kernel holds callers until `start`."""

    def __init__(self, sites: Sequence[Site], *, host: str = ANYWHERE) -> None:
        """Bind every port.

        Raises:
            ConfigInvalid: a port cannot be listened on.
        """
        self._sites: list[tuple[Site, socket.socket]] = []
        for site in sites:
            self._sites.append((site, self._bound(host, site.port)))
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = threading.Event()
        self._over: asyncio.Event | None = None

    def start(self) -> None:
        """Begin to answer, at once but not before this returns: the imports it needs go on beside the boot."""
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run `coroutine` in the thread's loop; wait for that loop to be there.

        Raises:
            RuntimeError: the thread has ended; what ended it was printed when it did.
        """
        self._running.wait()
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise RuntimeError("the thread that answers HTTP has ended")
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def close(self) -> None:
        """Stop answering, close every connection and end the thread."""
        if self._thread.ident is None:
            self._close_ports()
            return
        self._running.wait(CLOSE_LIMIT_S)
        loop = self._loop
        if loop is not None and self._over is not None:
            # Suppressed: the loop has just ended by itself.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._over.set)
        self._thread.join(CLOSE_LIMIT_S)

    def _bound(self, host: str, port: int) -> socket.socket:
        try:
            return socket.create_server((host, port), backlog=1024)
        except OSError as exc:
            self._close_ports()
            raise ConfigInvalid(f"port {port} cannot be listened on ({exc.strerror})", "Choose another PORT") from exc

    def _close_ports(self) -> None:
        for _, listener in self._sites:
            listener.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            # Whoever waits for the loop must learn that there is none.
            self._loop = None
            self._running.set()
            self._close_ports()

    async def _serve(self) -> None:
        # A fifth of a second that the boot need not wait for.
        from aiohttp import web  # noqa: PLC0415

        runners = []
        self._over = asyncio.Event()
        for site, listener in self._sites:
            runner = web.AppRunner(
                site.application(), handler_cancellation=True, access_log=None, shutdown_timeout=LINGER_S
            )
            await runner.setup()
            await web.SockSite(runner, listener).start()
            runners.append(runner)
        self._loop = asyncio.get_running_loop()
        self._running.set()
        await self._over.wait()
        for runner in runners:
            await runner.cleanup()
