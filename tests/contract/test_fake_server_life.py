"""The fake server starts, loads, dies and is stopped as it is told, and counts what happened."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import requests

from tests.fakes.api_server import ApiServer, wait_for
from tests.fakes.tiny_gguf import embedding_model
from worker.local.engine.store import register_gguf

HI = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
StartFake = Callable[..., ApiServer]


@pytest.fixture
def start_fake(tmp_path: Path) -> Iterator[StartFake]:
    """Start a fake; keywords are knobs. With `wait` False it need not answer."""
    with ExitStack() as stack:

        def start(*, wait: bool = True, **knobs: object) -> ApiServer:
            settings = {f"FAKE_{name.upper()}": str(value) for name, value in knobs.items()}
            server = ApiServer("fake", tmp_path / "home", **settings)
            if wait:
                return stack.enter_context(server)
            server.start()
            stack.push(server.__exit__)
            return server

        yield start


def is_open(server: ApiServer) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", server.port)) == 0


def test_a_knob_that_does_not_exist_ends_the_process(start_fake: StartFake) -> None:
    server = start_fake(wait=False, tokenz=3)
    assert server.process.wait(60) == 2
    assert server.output == "the fake server has no knob 'tokenz'\n"


def test_the_process_can_die_in_mid_answer(start_fake: StartFake) -> None:
    server = start_fake(die_at_token=1, exit_code=7)
    with pytest.raises(requests.RequestException):
        server.post("/api/chat", HI)
    assert server.process.wait(60) == 7


def test_the_process_can_end_by_itself(start_fake: StartFake) -> None:
    server = start_fake(wait=False, exit_after_s=0.2, exit_code=9)
    assert server.process.wait(60) == 9


def test_a_load_can_be_slow_or_fail(start_fake: StartFake) -> None:
    server = start_fake(load_s=0.3)
    began = time.monotonic()
    assert server.post("/api/generate", {"model": "smollm2"}).json()["done_reason"] == "load"
    assert time.monotonic() - began >= 0.3
    server.post("/api/generate", {"model": "smollm2", "keep_alive": 0})
    server.post("/fake/script", {"load_error": "out of memory"})
    refused = server.post("/api/chat", HI)
    assert (refused.status_code, refused.json()) == (500, {"error": "out of memory"})


def test_video_memory_can_be_too_small(start_fake: StartFake) -> None:
    server = start_fake(vram_share=0.5)
    server.post("/api/generate", {"model": "smollm2"})
    (loaded,) = server.get("/api/ps").json()["models"]
    assert loaded["size_vram"] * 2 == loaded["size"]


def test_models_can_do_what_the_script_says(start_fake: StartFake, tmp_path: Path) -> None:
    register_gguf(tmp_path / "home" / "models", "me/stored:1", embedding_model(tmp_path / "tiny.gguf"))
    server = start_fake(models="a,b=completion+thinking,c=broken")
    assert {model["name"] for model in server.get("/api/tags").json()["models"]} == {
        "a:latest",
        "b:latest",
        "c:latest",
        "me/stored:1",
    }
    answer = [json.loads(line) for line in server.post("/api/chat", {**HI, "model": "b"}).text.splitlines()]
    thought = "".join(line["message"].get("thinking", "") for line in answer)
    assert thought == "Let me think."
    assert server.post("/api/chat", {**HI, "model": "a", "think": True}).status_code == 400
    assert server.post("/api/generate", {"model": "c"}).status_code == 500
    assert requests.delete(f"{server.url}/api/delete", json={"model": "b"}, timeout=30).ok
    assert server.post("/api/chat", {**HI, "model": "b"}).status_code == 404


def test_the_port_can_open_late(start_fake: StartFake) -> None:
    server = start_fake(wait=False, listen_delay_s=1.5)
    assert wait_for(lambda: "Listening" in server.output or not is_open(server))
    assert "Listening" not in server.output
    assert wait_for(server.answers)


def test_an_open_port_can_answer_late_or_never(start_fake: StartFake) -> None:
    server = start_fake(wait=False, never_answer=1)
    assert wait_for(lambda: is_open(server))
    with pytest.raises(requests.Timeout):
        requests.get(server.url, timeout=0.5)


def test_answers_can_begin_after_the_port_opens(start_fake: StartFake) -> None:
    server = start_fake(wait=False, answer_delay_s=1)
    assert wait_for(lambda: is_open(server))
    opened = time.monotonic()
    assert wait_for(server.answers)
    assert time.monotonic() - opened > 0.2


def test_the_log_can_be_long(start_fake: StartFake) -> None:
    server = start_fake(log_lines=500, log_line_bytes=5000)
    logged = [line for line in server.output.splitlines() if line.startswith("line ")]
    assert len(logged) == 500
    assert {len(line) for line in logged} == {5000}


def test_sigterm_can_be_ignored_by_it_and_its_child(start_fake: StartFake) -> None:
    server = start_fake(ignore_sigterm=1, child=1)
    child = psutil.Process(server.get("/fake/stats").json()["child_pid"])
    os.killpg(server.process.pid, signal.SIGTERM)
    assert server.get("/").ok
    assert child.is_running()
    os.killpg(server.process.pid, signal.SIGKILL)
    assert server.process.wait(60) == -signal.SIGKILL
    assert wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_stats_tell_what_was_asked(start_fake: StartFake) -> None:
    server = start_fake(tokens=3)
    server.post("/api/chat", HI)
    server.post("/v1/chat/completions", HI)
    stats = server.get("/fake/stats").json()
    assert stats["requests"] == {"/api/chat": 1, "/v1/chat/completions": 1}
    assert stats["last"]["/api/chat"] == HI
    assert (stats["finished"], stats["cancelled"], stats["loads"], stats["tokens"]) == (2, 0, 1, 3)
    assert (stats["pid"], stats["child_pid"]) == (server.process.pid, None)
