"""The image on somebody's own machine: Ollama's, OpenAI's and Runpod's clients on one port, none knowing of another."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ollama
import openai
import pytest
import requests

from tests.conftest import FAKE, MODEL, Marked
from worker.local.process import ROOT, free_port, wait_for
from worker.local.standalone import PORT

if TYPE_CHECKING:
    from typing_extensions import Self

LIMIT_S = 90.0
KEY = "a key"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
TEXT = "Grüße aus 東京 🦙"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


class Standalone:
    """start.sh with WORKER_MODE=local, and the port it serves."""

    def __init__(self, home: Path, log: Path, marked: Marked, **settings: str) -> None:
        self.port, self.server_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHON": sys.executable,
            "PORT": str(self.port),
            "OLLAMA_HOST": f"127.0.0.1:{self.server_port}",
            "OLLAMA_MODELS": str(home / "models"),
            "OLLAMA_MODEL": MODEL,
            "WORKER_MODE": "local",
            "WORKER_SERVER_COMMAND": FAKE,
            "WORKER_ALLOW_CPU": "1",
            "WORKER_VOLUME": str(home / "volume"),
            "WORKER_API_KEY": KEY,
            "FAKE_TEXT": TEXT,
            **marked.environ,
            **settings,
        }

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([str(ROOT / "start.sh")], env=self._environ, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_S)

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def ping(self) -> int:
        assert self.process.poll() is None, self.log
        try:
            return requests.get(f"{self.url}/ping", timeout=LIMIT_S).status_code
        except requests.ConnectionError:
            return 0

    def resident(self) -> Self:
        assert wait_for(lambda: self.ping() == 200, LIMIT_S), self.log
        return self

    def stats(self) -> dict[str, Any]:
        return requests.get(f"http://127.0.0.1:{self.server_port}/fake/stats", timeout=LIMIT_S).json()

    def turn(self, **knobs: Any) -> None:
        requests.post(f"http://127.0.0.1:{self.server_port}/fake/script", json=knobs, timeout=LIMIT_S)

    def get(self, path: str, **headers: str) -> requests.Response:
        return requests.get(self.url + path, headers=headers or AUTHORIZED, timeout=LIMIT_S)

    def stream(self) -> requests.Response:
        body = {"model": MODEL, "messages": MESSAGES}
        return requests.post(f"{self.url}/api/chat", json=body, headers=AUTHORIZED, stream=True, timeout=LIMIT_S)


@pytest.fixture(scope="module")
def standalone(store_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    log = tmp_path_factory.mktemp("standalone") / "log"
    with Marked() as marked, Standalone(store_home, log, marked) as started:
        yield started.resident()


@pytest.fixture
def own(store_home: Path, tmp_path: Path, marked: Marked) -> Iterator[Standalone]:
    """One whose end is part of the test, with an answer no test waits for."""
    settings = {"FAKE_TOKENS": "60", "FAKE_TOKENS_PER_S": "20", "FAKE_LOAD_S": "1"}
    with Standalone(store_home, tmp_path / "log", marked, **settings) as started:
        yield started


def test_ollamas_client(standalone: Standalone) -> None:
    with ollama.Client(standalone.url, headers=AUTHORIZED, timeout=LIMIT_S) as client:
        assert client.chat(MODEL, MESSAGES).message.content == TEXT
        parts = list(client.chat(MODEL, MESSAGES, stream=True))
        assert "".join(part.message.content or "" for part in parts) == TEXT
        assert len(parts) > 3
        assert client.generate(MODEL, "hi").response == TEXT
        assert MODEL in [model.model for model in client.list().models]
        assert [model.model for model in client.ps().models] == [MODEL]
        assert client.show(MODEL).capabilities
        with pytest.raises(ollama.ResponseError, match="WORKER_ALLOW_MODEL_ADMIN") as caught:
            client.delete(MODEL)
        assert caught.value.status_code == 403
        with pytest.raises(ollama.ResponseError, match=f"Did you mean {MODEL}"):
            client.chat("smollm2:136m", MESSAGES)


def test_openais_client(standalone: Standalone) -> None:
    with openai.OpenAI(base_url=f"{standalone.url}/v1", api_key=KEY, max_retries=0, timeout=LIMIT_S) as client:
        assert MODEL in [model.id for model in client.models.list()]
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert answer.choices[0].message.content == TEXT
        chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
        assert len(chunks) > 3
        with pytest.raises(openai.NotFoundError, match="Did you mean"):
            client.chat.completions.create(model="smollm2:136m", messages=MESSAGES)
    with (
        openai.OpenAI(base_url=f"{standalone.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_runpods_clients_have_the_same_port(standalone: Standalone) -> None:
    done = requests.post(
        f"{standalone.url}/v2/local/runsync",
        json={"input": {"messages": MESSAGES}},
        headers=AUTHORIZED,
        timeout=LIMIT_S,
    ).json()
    assert done["output"][0]["message"]["content"] == TEXT
    with openai.OpenAI(base_url=f"{standalone.url}/v2/local/openai/v1", api_key=KEY, max_retries=0) as client:
        assert client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content == TEXT


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_each_token_is_passed_on_as_it_comes(standalone: Standalone, path: str) -> None:
    standalone.turn(hang_at_token=2)
    body = {"model": MODEL, "messages": MESSAGES, "stream": True}
    before = standalone.stats()["cancelled"]
    try:
        with requests.post(
            standalone.url + path, json=body, headers=AUTHORIZED, stream=True, timeout=LIMIT_S
        ) as answer:
            lines = (line for line in answer.iter_lines() if line)
            # The server sends two and then nothing: they are here without waiting for more.
            assert [b"content" in next(lines) for _ in range(2)] == [True, True]
        # Whoever hangs up frees the slot.
        assert wait_for(lambda: standalone.stats()["cancelled"] == before + 1, LIMIT_S)
    finally:
        standalone.turn(hang_at_token=-1)


def test_only_health_is_for_everybody_and_only_known_routes_are_open(standalone: Standalone) -> None:
    for path in ("/api/tags", "/v1/models", "/metrics", "/v2/local/health"):
        for header, value in {"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY}.items():
            assert standalone.get(path, **{header: "Bearer another"}).status_code == 401
            assert standalone.get(path, **{header: value}).status_code == 200
    assert standalone.get("/ping", Authorization="").status_code == 200
    assert standalone.get("/api/blobs/sha256:0").status_code == 403
    for path in ("/fake/stats", "/nosuch", "/v2/local/status/absent", "/v2/local/absent"):
        assert standalone.get(path).status_code == 404


def test_the_readme_tells_the_ports_of_this_mode() -> None:
    rows = [
        line.split(" | ") for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.startswith("| `")
    ]
    told = {row[0].strip("| `"): row[-1] for row in rows}
    assert f"and `local`: where the API is served. Unset with `local`: {PORT}." in told["PORT"]
    assert "on `PORT`, but with `queue` nowhere" in told["PORT_METRICS"]


def test_an_endpoint_of_somebody_elses_documentation_is_told_the_id_here(standalone: Standalone) -> None:
    answer = requests.post(f"{standalone.url}/v2/ENDPOINT_ID/runsync", json={}, headers=AUTHORIZED, timeout=LIMIT_S)
    assert (answer.status_code, answer.json()["error"]) == (
        404,
        "there is no endpoint 'ENDPOINT_ID' here, its id is 'local': /v2/local/runsync",
    )


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_ollamas_command_line_finds_a_server(standalone: Standalone, method: str) -> None:
    answer = requests.request(method, standalone.url + "/", headers=AUTHORIZED, timeout=LIMIT_S)
    assert (answer.status_code, answer.text) == (200, "Ollama is running" if method == "GET" else "")
    assert requests.request(method, standalone.url + "/", timeout=LIMIT_S).status_code == 401


def test_figures_count_requests_jobs_and_the_boot(standalone: Standalone) -> None:
    def finished() -> float:
        lines = standalone.get("/metrics").text.splitlines()
        counted = [line for line in lines if line.startswith('worker_jobs_total{outcome="finished"')]
        return float(counted[0].split()[-1]) if counted else 0.0

    before = finished()
    test_runpods_clients_have_the_same_port(standalone)
    with standalone.stream() as answer:
        assert json.loads(list(answer.iter_lines())[-1])["done"]
    assert wait_for(lambda: finished() == before + 3, LIMIT_S)
    assert 'worker_boot_span_seconds{span="load"}' in standalone.get("/metrics").text


def test_it_says_when_it_boots_and_lets_requests_finish_at_its_end(own: Standalone) -> None:
    seen: list[int] = []
    assert wait_for(lambda: seen.append(own.ping()) or seen[-1] == 200, LIMIT_S), own.log
    assert [status for status in dict.fromkeys(seen) if status] == [204, 200]
    with own.stream() as answer:
        lines = answer.iter_lines()
        next(lines)
        own.process.send_signal(signal.SIGTERM)
        assert wait_for(lambda: own.ping() == 503, LIMIT_S)
        assert json.loads(list(lines)[-1])["done"] is True
    assert own.process.wait(LIMIT_S) == 0
    assert "Traceback" not in own.log


def test_a_server_that_dies_ends_it_with_the_workers_code(own: Standalone) -> None:
    own.resident().turn(die_at_token=3)
    with own.stream() as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert b"the connection to the server was lost" in lines[-1]
    assert own.process.wait(LIMIT_S) == 13


def test_a_mistake_in_the_configuration_is_told_and_nothing_is_started(
    store_home: Path, tmp_path: Path, marked: Marked
) -> None:
    with Standalone(store_home, tmp_path / "log", marked, WORKER_TYPO="1", HEALTH_CHECK_PATH="ping") as wrong:
        assert wrong.process.wait(LIMIT_S) == 10
    assert "WORKER_TYPO is not a setting of this worker" in wrong.log
    assert "Traceback" not in wrong.log


def test_a_port_that_cannot_be_had_is_told_and_nothing_is_started(
    store_home: Path, tmp_path: Path, marked: Marked
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with Standalone(store_home, tmp_path / "log", marked, PORT=port) as wrong:
            assert wrong.process.wait(LIMIT_S) == 10
    assert f"port {port} cannot be listened on" in wrong.log
    with Standalone(store_home, tmp_path / "other", marked, PORT="abc") as wrong:
        assert wrong.process.wait(LIMIT_S) == 10
    assert "PORT" in wrong.log
    assert "Traceback" not in wrong.log
