"""The gateway's web applications: what is answered at which path, and to whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from worker.config import Config
from worker.events import EventWriter
from worker.gateway.access import Access
from worker.gateway.health import Health
from worker.gateway.passage import BODY_BYTES, Passage, refusal, refused
from worker.metrics import CONTENT_TYPE, Metrics
from worker.proxy import Proxy

METRICS_PATH = "/metrics"
# What Ollama's own clients ask first, and what Ollama says to that.
ROOT_PATH, ROOT_TEXT = "/", "Ollama is running"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def health_only(path: str, health: Health) -> web.Application:
    """Return an application that answers at `path` with the worker's state, to anyone."""
    application = web.Application()
    application.router.add_get(path, _health(health))
    return application


def metrics_only(metrics: Metrics) -> web.Application:
    """Return an application that answers at /metrics, to anyone who reaches its port."""
    application = web.Application()
    application.router.add_get(METRICS_PATH, _figures(metrics))
    return application


def api(path: str, health: Health, access: Access, passage: Passage, metrics: Metrics | None = None) -> web.Application:
    """Return the application of a load-balancing endpoint.

    Health is at `path`, for anyone; the server's API, and `metrics` if given, are for those who may call.
    """
    application = web.Application(client_max_size=BODY_BYTES)
    figures = _figures(metrics) if metrics is not None else None

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "OPTIONS" and (headers := access.preflight(request.headers)):
            return web.Response(status=204, headers=headers)
        if not access.allows(request.headers):
            return refusal(refused(401, "the key is missing or wrong", "Send WORKER_API_KEY's value"), request.path)
        if figures is not None and request.path == METRICS_PATH and request.method == "GET":
            return await figures(request)
        if request.path == ROOT_PATH and request.method in {"GET", "HEAD"}:
            return web.Response(text=ROOT_TEXT)
        return await passage.answer(request)

    async def sign(request: web.Request, response: web.StreamResponse) -> None:
        # Before the headers go out, also those of an error: a page may read it then.
        response.headers.update(access.cors(request.headers))

    application.router.add_get(path, _health(health))
    application.router.add_route("*", "/{path:.*}", answer)
    application.on_response_prepare.append(sign)
    return application


def of_server(
    config: Config, writer: EventWriter, health: Health, metrics: Metrics | None
) -> tuple[web.Application, Passage]:
    """Return the application that stands before the server of `config`, and what passes requests on in it.

    To be called inside the event loop that serves it.
    """
    proxy = Proxy(config.server_url, stall_timeout_s=config.stall_timeout_s)
    passage = Passage(proxy, writer, health, allow_admin=config.allow_model_admin)
    access = Access(config.api_key, config.cors_origins)
    application = api(config.health_path, health, access, passage, metrics)
    application.on_cleanup.append(lambda _: proxy.close())
    return application, passage


def _figures(metrics: Metrics) -> Handler:
    async def tell(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    return tell


def _health(health: Health) -> Handler:
    async def state(_: web.Request) -> web.Response:
        return web.Response(status=health.status)

    return state
