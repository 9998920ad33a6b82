"""After a thaw the first jobs wait for one look at the server, which loads a model that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.api_server import ApiServer
from worker import thaw as module
from worker.local.process import free_port
from worker.proxy import Proxy
from worker.pulse import Pulse
from worker.thaw import Thaw

if TYPE_CHECKING:
    from tests.conftest import Written


class Freezer:
    """A clock of the test's own."""

    def __init__(self) -> None:
        self.at = 0.0

    def freeze(self, seconds: float) -> None:
        self.at += seconds

    def __call__(self) -> tuple[float]:
        return (self.at,)


Make = Callable[..., Thaw]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    models = "m,other,vectors=embedding"
    with ApiServer("fake", tmp_path_factory.mktemp("fake"), FAKE_MODELS=models) as server:
        yield server


@pytest.fixture
def server(fake: ApiServer) -> Iterator[ApiServer]:
    """The server with nothing loaded and no fault."""
    fake.post("/fake/script", {"load_s": 0, "load_error": "", "refuse_status": 0})
    for model in ("m", "other", "vectors"):
        fake.post("/api/generate", {"model": model, "keep_alive": 0})
    yield fake
    fake.post("/fake/script", {"load_s": 0, "load_error": "", "refuse_status": 0})


@pytest.fixture
def freezer() -> Freezer:
    return Freezer()


@pytest.fixture
async def make(freezer: Freezer, written: Written) -> AsyncIterator[Make]:
    async with contextlib.AsyncExitStack() as stack:

        def _make(url: str, *, model: str = "m", limit_s: float = 30.0) -> Thaw:
            proxy = Proxy(url, stall_timeout_s=30.0)
            stack.push_async_callback(proxy.close)
            made = Thaw(proxy, written.writer, model=model, limit_s=limit_s, pulse=Pulse(freezer))
            stack.callback(made.close)
            return made

        yield _make


def loads(server: ApiServer) -> int:
    return int(server.get("/fake/stats").json()["loads"])


def asked(server: ApiServer) -> int:
    return int(server.get("/fake/stats").json()["requests"].get("/api/generate", 0))


def loaded(server: ApiServer) -> list[str]:
    return [model["name"] for model in server.get("/api/ps").json()["models"]]


def names(written: Written) -> list[str]:
    return [record["event"] for record in written.records]


async def test_a_worker_that_was_not_frozen_asks_nobody(
    server: ApiServer, make: Make, freezer: Freezer, written: Written
) -> None:
    thaw, before = make(server.url), loads(server)
    for _ in range(3):
        freezer.freeze(1.0)
        await thaw.settled()
    assert (names(written), loads(server)) == ([], before)


async def test_a_model_that_is_gone_is_loaded_again(
    server: ApiServer, make: Make, freezer: Freezer, written: Written
) -> None:
    thaw, before = make(server.url), loads(server)
    freezer.freeze(3600.04)
    await thaw.settled()
    assert loaded(server) == ["m:latest"]
    assert loads(server) == before + 1
    assert names(written) == ["thaw.noticed", "model.reloaded"]
    assert written.one("thaw.noticed")["missed_s"] == 3600.0
    assert written.one("model.reloaded")["model"] == "m"
    await thaw.settled()
    assert len(names(written)) == 2


async def test_a_model_that_is_still_there_is_left_alone(
    server: ApiServer, make: Make, freezer: Freezer, written: Written
) -> None:
    server.post("/api/generate", {"model": "m"})
    thaw, before = make(server.url), loads(server)
    freezer.freeze(60)
    await thaw.settled()
    assert (names(written), loads(server)) == (["thaw.noticed"], before)


async def test_another_model_that_a_job_asked_for_is_not_put_out(
    server: ApiServer, make: Make, freezer: Freezer
) -> None:
    server.post("/api/generate", {"model": "other"})
    thaw = make(server.url)
    freezer.freeze(60)
    await thaw.settled()
    assert loaded(server) == ["other:latest"]


async def test_jobs_that_come_at_once_share_one_look(
    server: ApiServer, make: Make, freezer: Freezer, written: Written
) -> None:
    server.post("/fake/script", {"load_s": 0.3})
    thaw, before, requests = make(server.url), loads(server), asked(server)
    freezer.freeze(60)
    await asyncio.gather(*(thaw.settled() for _ in range(20)))
    assert (loads(server), asked(server)) == (before + 1, requests + 1)
    assert loaded(server) == ["m:latest"]
    assert names(written) == ["thaw.noticed", "model.reloaded"]


async def test_a_job_that_is_stopped_does_not_stop_the_look(
    server: ApiServer, make: Make, freezer: Freezer, written: Written
) -> None:
    server.post("/fake/script", {"load_s": 0.3})
    thaw = make(server.url)
    freezer.freeze(60)
    first = asyncio.create_task(thaw.settled())
    second = asyncio.create_task(thaw.settled())
    await asyncio.sleep(0)
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert names(written) == ["thaw.noticed", "model.reloaded"]


async def test_every_thaw_has_its_own_look(server: ApiServer, make: Make, freezer: Freezer, written: Written) -> None:
    thaw = make(server.url)
    for _ in range(2):
        freezer.freeze(60)
        await thaw.settled()
        server.post("/api/generate", {"model": "m", "keep_alive": 0})
    assert names(written) == ["thaw.noticed", "model.reloaded"] * 2


async def test_a_model_for_embeddings_is_loaded_by_its_own_route(
    server: ApiServer, make: Make, freezer: Freezer, written: Written
) -> None:
    thaw = make(server.url, model="vectors")
    freezer.freeze(60)
    await thaw.settled()
    assert written.one("model.reloaded")["model"] == "vectors"


@pytest.mark.parametrize("fault", [{"load_error": "out of memory"}, {"load_s": 30}])
async def test_a_load_that_fails_is_for_the_job_to_find_out(
    fault: dict[str, Any], server: ApiServer, make: Make, freezer: Freezer, written: Written
) -> None:
    server.post("/fake/script", fault)
    thaw = make(server.url, limit_s=0.5)
    freezer.freeze(60)
    await thaw.settled()
    assert names(written) == ["thaw.noticed"]


async def test_a_server_that_is_gone_is_for_the_job_to_find_out(make: Make, freezer: Freezer, written: Written) -> None:
    thaw = make(f"http://127.0.0.1:{free_port()}")
    freezer.freeze(60)
    await thaw.settled()
    assert names(written) == ["thaw.noticed"]


async def test_a_server_that_says_nothing_does_not_hold_jobs_for_long(
    make: Make, freezer: Freezer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_LIMIT_S", 0.2)
    # The kernel takes the connection, and nobody answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        thaw = make(f"http://127.0.0.1:{silent.getsockname()[1]}")
        freezer.freeze(60)
        began_s = time.monotonic()
        await thaw.settled()
        # As long as the time limit and no other: the proxy's own is 30 s.
        assert time.monotonic() - began_s < 20


@pytest.mark.parametrize("answer", [b"[]", b"not json", b'{"models": null}', b"{}"])
async def test_an_answer_that_cannot_be_understood_stops_nothing(
    answer: bytes, make: Make, freezer: Freezer, written: Written
) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer)
        writer.write(head + answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as strange:
        thaw = make(f"http://127.0.0.1:{strange.sockets[0].getsockname()[1]}")
        freezer.freeze(60)
        await thaw.settled()
    # The one answer that says that there is no model leads to a load, which this server answers likewise.
    assert names(written) == ["thaw.noticed", *(["model.reloaded"] if b"null" in answer else [])]
