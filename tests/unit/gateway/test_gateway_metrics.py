from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import requests

from worker import events
from worker.errors import ConfigInvalid
from worker.gateway import metrics_port
from worker.local.process import free_port
from worker.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from tests.conftest import Written

HOST = "127.0.0.1"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": False}


def get(port: int) -> requests.Response:
    return requests.get(f"http://{HOST}:{port}/metrics", timeout=20)


def test_a_port_of_its_own_tells_what_was_before_it_and_what_comes() -> None:
    writer = events.EventWriter(io.StringIO())
    writer.write(events.ContainerStarted(), at_ns=1_000_000_000)
    writer.write(events.WorkerStarted(pid=1, version="x"), at_ns=3_000_000_000)
    port = free_port()
    with metrics_port.opened(port, writer, host=HOST):
        answer = get(port)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
        assert 'worker_boot_span_seconds{span="container"} 2.0' in answer.text
        writer.write(events.JobAccepted("a"))
        assert "worker_jobs_running 1.0" in get(port).text
        assert requests.get(f"http://{HOST}:{port}/api/tags", timeout=20).status_code == 404
    with pytest.raises(requests.ConnectionError):
        get(port)


def test_without_a_port_nothing_is_opened() -> None:
    with metrics_port.opened(None, events.EventWriter(io.StringIO())):
        pass


def test_a_port_in_use_is_a_mistake_in_the_configuration() -> None:
    writer = events.EventWriter(io.StringIO())
    port = free_port()
    with (
        metrics_port.opened(port, writer, host=HOST),
        pytest.raises(ConfigInvalid, match=str(port)),
        metrics_port.opened(port, writer, host=HOST),
    ):
        pytest.fail("two cannot listen on one port")


async def test_beside_the_api_the_key_is_asked_for(make_front: Callable[..., Any], written: Written) -> None:
    front = await make_front(key="k", metered=True)
    async with front.call("GET", "/metrics") as answer:
        assert answer.status == 401
    headers = {"Authorization": "Bearer k"}
    async with front.call("POST", "/api/chat", json=CHAT, headers=headers) as answer:
        assert answer.status == 200
    async with front.call("GET", "/metrics", headers=headers) as answer:
        assert 'worker_jobs_total{outcome="finished",status=""} 1.0' in await told(answer)
    assert written.one("job.finished")


async def told(answer: aiohttp.ClientResponse) -> str:
    assert answer.headers["Content-Type"] == CONTENT_TYPE
    return await answer.text()
