"""The queue as one HTTP server on one event loop: all routes, the sweep, start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from worker.gateway.access import Access
from worker.local.queue.client_side import ClientSide
from worker.local.queue.errors import EndpointUnknown, Refused, Unauthorized
from worker.local.queue.faults import Faults
from worker.local.queue.job import Job
from worker.local.queue.limits import Limits
from worker.local.queue.openai_front import OpenAIFront
from worker.local.queue.record import Record
from worker.local.queue.store import JobStore
from worker.local.queue.webhook import Webhooks
from worker.local.queue.worker_side import WorkerSide

ENDPOINT_ID = "local"
PREFIX = f"/v2/{ENDPOINT_ID}"
# What is sent to another endpoint's address, often that of the documentation's placeholder.
ELSEWHERE = f"/v2/{{endpoint:(?!{ENDPOINT_ID}/)[^/]+}}/{{call:.+}}"
SWEEP_S = 0.05
READ_BYTES = 64 * 1024 * 1024  # above every limit, so that the queue and not aiohttp answers a large body

Beside = Callable[[], web.Application]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class QueueServer:
    """The server of one endpoint's queue. Everything in it runs on the loop of `serve`."""

    def __init__(
        self, limits: Limits, faults: Faults, record: Record, api_key: str | None, *, beside: Beside | None = None
    ) -> None:
        """Prepare; nothing runs until `serve`. `beside` makes the application that the queue's routes are added to."""
        self._beside = beside or (lambda: web.Application(client_max_size=READ_BYTES))
        self.store = JobStore(limits, record)
        self.store.on_final = self._announce
        self._api_key = api_key
        self._access = Access(api_key, None)
        self._webhooks = Webhooks(limits)
        self._workers = WorkerSide(self.store, record, faults, limits, api_key=api_key)
        clients, openai = ClientSide(self.store, limits), OpenAIFront(self.store, limits)
        elsewhere = web.route("*", ELSEWHERE, _elsewhere)
        self._client_routes = [*clients.routes(PREFIX), *openai.routes(PREFIX), elsewhere]
        self._stopped = asyncio.Event()

    async def serve(self, host: str, port: int, started: Callable[[int], None]) -> None:
        """Listen until `stop`; `started` gets the port, which is a free one when `port` is 0. Raises OSError."""
        # Cancelling handlers of closed connections is what ends the polls of dead workers.
        runner = web.AppRunner(self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            started(runner.addresses[0][1])
            while not self._stopped.is_set():
                self.store.sweep()
                await self._pause()
        finally:
            self._workers.close()
            await runner.cleanup()
            await self._webhooks.close()

    def stop(self) -> None:
        """Let `serve` end. Call it on the loop's thread."""
        self._stopped.set()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), SWEEP_S)
        except asyncio.TimeoutError:
            return

    def _app(self) -> web.Application:
        app = self._beside()
        app.middlewares.append(_refuse_in_json)
        app.add_routes(self._workers.routes(PREFIX))
        app.add_routes([self._guarded(route) for route in self._client_routes])
        return app

    def _guarded(self, route: web.RouteDef) -> web.RouteDef:
        async def handle(request: web.Request) -> web.StreamResponse:
            # Runpod takes the bare key, too.
            if request.headers.get("Authorization", "") != self._api_key and not self._access.allows(request.headers):
                raise Unauthorized("the API key is missing or wrong")
            return await handler(request)

        handler = cast("Handler", route.handler)
        return web.RouteDef(route.method, route.path, handle, route.kwargs)

    def _announce(self, job: Job) -> None:
        if job.order.webhook is not None:
            self._webhooks.post(job.order.webhook, self.store.status(job))


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    endpoint, call = request.match_info["endpoint"], request.match_info["call"]
    raise EndpointUnknown(f"there is no endpoint {endpoint!r:.80} here, its id is {ENDPOINT_ID!r}: {PREFIX}/{call:.80}")


@web.middleware
async def _refuse_in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refusal:
        return web.json_response({"error": str(refusal)}, status=refusal.status)
    except web.HTTPException as refusal:
        return web.json_response({"error": f"{request.method} {request.path}: {refusal.reason}"}, status=refusal.status)
