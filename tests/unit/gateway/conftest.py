from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web

from tests.fakes.api_server import ApiServer
from worker.gateway import application
from worker.gateway.access import Access
from worker.gateway.health import Health
from worker.gateway.passage import Passage
from worker.metrics import Metrics
from worker.proxy import Proxy

if TYPE_CHECKING:
    from tests.conftest import Written

LIMIT_S = 60.0
KNOBS = {
    "models": "m",
    "tokens": 0,
    "tokens_per_s": 0,
    "first_token_delay_s": 0,
    "die_at_token": -1,
    "drop_at_token": -1,
    "hang_at_token": -1,
    "refuse_status": 0,
}


class Front:
    """A gateway's API on loopback; `call` makes one request to it."""

    def __init__(self, session: aiohttp.ClientSession, passage: Passage, health: Health) -> None:
        self.session = session
        self.passage = passage
        self.health = health

    def call(
        self, method: str, path: str, **more: object
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.session.request(method, path, **more)


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer("fake", tmp_path_factory.mktemp("gateway"), FAKE_MODELS="m") as server:
        yield server


@pytest.fixture
def turn(fake: ApiServer) -> Iterator[Callable[..., None]]:
    """Turn knobs of the server for one test."""
    yield lambda **knobs: fake.post("/fake/script", knobs)
    fake.post("/fake/script", KNOBS)


MakeFront = Callable[..., object]


@pytest.fixture
async def make_front(fake: ApiServer, written: Written) -> AsyncIterator[MakeFront]:
    async with AsyncExitStack() as stack:

        async def make(
            *,
            url: str = fake.url,
            key: str | None = None,
            origins: str | None = None,
            allow_admin: bool = False,
            stall_s: float = LIMIT_S,
            metered: bool = False,
        ) -> Front:
            health = Health(lambda: False)
            health.become_resident()
            proxy = Proxy(url, stall_timeout_s=stall_s)
            stack.push_async_callback(proxy.close)
            passage = Passage(proxy, written.writer, health, allow_admin=allow_admin)
            metrics = Metrics() if metered else None
            if metrics is not None:
                written.writer.listen(metrics.observe)
            made = application.api("/ping", health, Access(key, origins), passage, metrics)
            runner = web.AppRunner(made, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            base = f"http://127.0.0.1:{runner.addresses[0][1]}"
            timeout = aiohttp.ClientTimeout(total=LIMIT_S)
            session = await stack.enter_async_context(aiohttp.ClientSession(base, timeout=timeout))
            return Front(session, passage, health)

        yield make


@pytest.fixture
async def front(make_front: Callable[[], object]) -> Front:
    return await make_front()
