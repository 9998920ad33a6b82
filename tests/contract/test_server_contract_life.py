"""How the server starts, serves several at once, is left by a client, refuses work, and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import requests

from tests.fakes.api_server import WITH_RUNNERS, ApiServer, wait_for

StartApi = Callable[..., ApiServer]
STORY = [{"role": "user", "content": "Tell a very long story about a llama, a queue and a volume."}]
# More than any test waits for: the story must be cut off, not finished.
LONG = {"num_predict": 1500, "temperature": 0.8, "seed": 7, "stop": []}
BUSY = "server busy, please try again.  maximum pending requests exceeded"


def story(**more: Any) -> dict[str, Any]:
    return {"model": "smol", "messages": STORY, "options": LONG, **more}


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def children(server: ApiServer) -> list[int]:
    return [child.pid for child in psutil.Process(server.process.pid).children(recursive=True)]


@contextmanager
def open_stream(server: ApiServer, body: dict[str, Any]) -> Iterator[Iterator[bytes]]:
    """Start a streamed chat and lend its lines when the first one is there; leaving closes the connection."""
    with requests.post(f"{server.url}/api/chat", json=body, stream=True, timeout=110) as response:
        lines = response.iter_lines(chunk_size=1)
        assert next(lines)
        yield lines


def is_at_work(server: ApiServer) -> bool:
    """Say whether a chat has reached the model; llama.cpp logs it, the fake counts it."""
    if server.kind == "fake":
        return "/api/chat" in server.get("/fake/stats").json()["requests"]
    return "processing task" in server.output


def has_cancelled(server: ApiServer) -> bool:
    """Say whether an answer was given up before its end."""
    if server.kind == "fake":
        return bool(server.get("/fake/stats").json()["cancelled"])
    return "cancel task" in server.output


@pytest.fixture
def slow_api(start_api: StartApi) -> ApiServer:
    """A server of one's own with one slot, on which a story takes its time."""
    return start_api(OLLAMA_NUM_PARALLEL="1", FAKE_TOKENS="1500", FAKE_TOKENS_PER_S="20")


def test_requests_are_served_side_by_side(api: ApiServer) -> None:
    body = {"model": "smol", "messages": [{"role": "user", "content": "Say hi."}], "stream": False}
    body["options"] = {"num_predict": 4, "temperature": 0}
    with ThreadPoolExecutor(4) as pool:
        answers = [answer.json() for answer in pool.map(lambda _: api.post("/api/chat", body), range(4))]
    assert [answer["done_reason"] for answer in answers] == ["length"] * 4
    assert all(answer["message"]["content"] for answer in answers)


def test_a_client_that_leaves_stops_the_generation(slow_api: ApiServer) -> None:
    with open_stream(slow_api, story()):
        assert not has_cancelled(slow_api)
    assert wait_for(lambda: has_cancelled(slow_api))
    # The only slot is free again.
    body = slow_api.post("/api/chat", story(stream=False, options={"num_predict": 1, "temperature": 0}))
    assert body.json()["eval_count"] == 1


def test_a_client_that_leaves_before_the_first_token_is_noticed_too(start_api: StartApi) -> None:
    server = start_api(OLLAMA_NUM_PARALLEL="1", FAKE_FIRST_TOKEN_DELAY_S="60")
    server.post("/api/generate", {"model": "smol"})
    long_prompt = [{"role": "user", "content": "word " * 700}]
    payload = json.dumps(story(messages=long_prompt)).encode()
    head = f"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(payload)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + payload)
        assert wait_for(lambda: is_at_work(server))
    assert wait_for(lambda: has_cancelled(server))


@pytest.mark.parametrize("start_api", WITH_RUNNERS, indirect=True)
def test_keep_alive_ends_by_itself(start_api: StartApi) -> None:
    server = start_api(OLLAMA_KEEP_ALIVE="1s")
    server.post("/api/generate", {"model": "embed"})
    server.post("/api/embed", {"model": "embed"})
    assert wait_for(lambda: server.get("/api/ps").json() == {"models": []})
    assert wait_for(lambda: not children(server))


@pytest.mark.parametrize("start_api", WITH_RUNNERS, indirect=True)
def test_a_request_can_shorten_its_models_stay(start_api: StartApi) -> None:
    server = start_api()
    server.post("/api/embed", {"model": "embed", "input": "x", "keep_alive": "500ms"})
    assert wait_for(lambda: server.get("/api/ps").json() == {"models": []})


@pytest.mark.parametrize("start_api", WITH_RUNNERS, indirect=True)
def test_only_as_many_models_stay_loaded_as_allowed(start_api: StartApi) -> None:
    server = start_api(OLLAMA_MAX_LOADED_MODELS="1")
    server.post("/api/embed", {"model": "embed", "input": "x"})
    server.post("/api/generate", {"model": "smol"})
    assert [model["name"] for model in server.get("/api/ps").json()["models"]] == ["smol:latest"]


@pytest.mark.parametrize("start_api", WITH_RUNNERS, indirect=True)
def test_other_runner_options_reload_the_model(start_api: StartApi) -> None:
    server = start_api()
    server.post("/api/generate", {"model": "smol"})
    server.post("/api/generate", {"model": "smol", "options": {"num_ctx": 512}})
    (loaded,) = server.get("/api/ps").json()["models"]
    assert loaded["context_length"] == 512


def test_a_full_queue_is_503(start_api: StartApi) -> None:
    server = start_api(OLLAMA_MAX_QUEUE="0", FAKE_REFUSE_STATUS="503", FAKE_REFUSE_TIMES="1")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: server.post("/api/generate", {"model": "smol"}), range(4)))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 503}
    refused = answers[statuses.index(503)]
    assert refused.json() == {"error": BUSY}
    assert server.post("/api/generate", {"model": "smol"}).status_code == 200


def test_sigterm_ends_it_and_its_runners_quickly_and_well(slow_api: ApiServer) -> None:
    with open_stream(slow_api, story()):
        runners = children(slow_api)
        began = time.monotonic()
        slow_api.process.terminate()
        assert slow_api.process.wait(30) == 0
        assert time.monotonic() - began < 15
    assert wait_for(lambda: not any(map(is_running, runners)))


def test_a_signal_to_the_process_group_leaves_nothing(slow_api: ApiServer) -> None:
    with open_stream(slow_api, story()):
        group = [slow_api.process.pid, *children(slow_api)]
        os.killpg(slow_api.process.pid, signal.SIGTERM)
        slow_api.process.wait(30)
    assert wait_for(lambda: not any(map(is_running, group)))


@pytest.mark.parametrize("start_api", WITH_RUNNERS, indirect=True)
def test_a_runner_that_dies_costs_its_answer_and_nothing_else(slow_api: ApiServer) -> None:
    with open_stream(slow_api, story()) as lines:
        for pid in children(slow_api):
            os.kill(pid, signal.SIGKILL)
        *_, last = [json.loads(line) for line in lines]
    assert "error" in last
    answer = slow_api.post("/api/chat", story(stream=False, options={"num_predict": 1, "temperature": 0}))
    assert answer.json()["eval_count"] == 1


def test_leaving_during_the_load_does_not_stop_the_next_one(start_api: StartApi) -> None:
    server = start_api(FAKE_LOAD_S="1")
    gone = threading.Thread(target=_leave_early, args=(server,))
    gone.start()
    gone.join()
    assert server.post("/api/generate", {"model": "smol"}).json()["done_reason"] == "load"


def _leave_early(server: ApiServer) -> None:
    with pytest.raises(requests.Timeout):
        requests.post(f"{server.url}/api/generate", json={"model": "smol"}, timeout=0.1)
