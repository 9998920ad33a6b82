"""The life of the engine's process: listen, serve, stop on a signal."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
from aiohttp import web

from worker.local.engine import log
from worker.local.engine.routes import VERSION, Routes
from worker.local.engine.scheduler import Scheduler
from worker.local.engine.settings import Settings

GIB = 1 << 30
# How long open answers get when the process is told to stop; aiohttp takes 0 for "as long as they like".
STOP_S = 0.1


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; raise OSError when the address cannot be listened on."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # A runner closes idle connections at moments of its own; a new one costs nothing on loopback.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), connector=connector) as http:
        scheduler = Scheduler(settings, http)
        # Generation must stop when its client goes away, which aiohttp does only when asked.
        runner = web.AppRunner(
            Routes(settings, scheduler).application(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=STOP_S,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
            _announce(settings, runner.addresses[0][1])
            await stop.wait()
        finally:
            await runner.cleanup()
            await scheduler.close()


def _announce(settings: Settings, port: int) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    log.info("server config", models=settings.models, parallel=settings.parallel, context=settings.context_length)
    log.info(f"Listening on {settings.host}:{port} (version {VERSION})")
    log.info("inference compute", id="cpu", library="cpu", name="cpu", type="", total=f"{total:.1f} GiB")
    log.info("vram-based default context", total_vram="0 B", default_num_ctx=settings.context_length)
