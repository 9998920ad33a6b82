from __future__ import annotations

import asyncio
import socket
import threading

import pytest
import requests
from aiohttp import web

from worker.errors import ConfigInvalid
from worker.gateway.http_thread import HttpThread, Site
from worker.local.process import free_port, wait_for

HOST = "127.0.0.1"


def site(text: str, port: int | None = None) -> Site:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    def application() -> web.Application:
        made = web.Application()
        made.router.add_get("/", answer)
        return made

    return Site(port or free_port(), application)


def get(place: Site) -> str:
    return requests.get(f"http://{HOST}:{place.port}/", timeout=20).text


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def test_every_site_is_answered_until_the_thread_is_closed() -> None:
    sites = [site("one"), site("two")]
    thread = HttpThread(sites, host=HOST)
    thread.start()
    assert [get(place) for place in sites] == ["one", "two"]
    thread.close()
    assert not any(is_open(place.port) for place in sites)
    assert "http" not in {running.name for running in threading.enumerate()}
    thread.close()


def test_callers_wait_from_the_moment_the_port_is_bound() -> None:
    place = site("here")
    thread = HttpThread([place], host=HOST)
    answers: list[str] = []
    caller = threading.Thread(target=lambda: answers.append(get(place)))
    caller.start()
    assert is_open(place.port)
    thread.start()
    caller.join(20)
    thread.close()
    assert answers == ["here"]


def test_what_was_never_started_can_be_closed() -> None:
    place = site("here")
    HttpThread([place], host=HOST).close()
    assert not is_open(place.port)


def test_a_port_in_use_is_a_mistake_in_the_configuration() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        free = site("y")
        with pytest.raises(ConfigInvalid, match=f"port {port} cannot be listened on"):
            HttpThread([free, site("x", port)], host=HOST)
    assert not is_open(free.port)


def test_work_is_done_in_the_loop_that_answers() -> None:
    thread = HttpThread([site("here")], host=HOST)
    thread.start()

    async def name() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert thread.submit(name()).result(20) == "http"
    thread.close()


def test_closing_cuts_off_a_request_that_never_ends() -> None:
    began = threading.Event()
    ended = threading.Event()

    async def hang(_: web.Request) -> web.Response:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return web.Response()

    def application() -> web.Application:
        made = web.Application()
        made.router.add_get("/", hang)
        return made

    place = Site(free_port(), application)
    thread = HttpThread([place], host=HOST)
    thread.start()
    with socket.create_connection((HOST, place.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert began.wait(20)
        thread.close()
        client.settimeout(20)
        assert client.recv(1) == b""
    assert wait_for(ended.is_set)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_could_not_begin_says_so_to_who_needs_it() -> None:
    def broken() -> web.Application:
        raise ImportError("no such module")

    thread = HttpThread([Site(free_port(), broken)], host=HOST)
    thread.start()
    with pytest.raises(RuntimeError, match="has ended"):
        thread.submit(asyncio.sleep(0))
    thread.close()
