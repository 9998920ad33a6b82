from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from worker.errors import BootError, ConfigInvalid, GpuUnusable, ServerExited, ServerTimeout, WeightsUnavailable
from worker.residency import Residency, Resident, require_gpu

LIMIT_S = 30.0
LOADED = {"model": "m", "response": "", "done": True, "done_reason": "load"}
Answer = tuple[int, Any] | Callable[["Handler"], None]


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "model": name, "size": 100, "size_vram": 60, "context_length": 4096, **more}


def listed(*entries: dict[str, Any]) -> Answer:
    return 200, {"models": list(entries)}


class Handler(BaseHTTPRequestHandler):
    """Answers from the fake's table, one answer a connection."""

    server: Fake

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, body: Any) -> None:
        self.server.asked.append((self.path, body))
        answer = self.server.answers.get(self.path, (404, b"404 page not found"))
        if callable(answer):
            answer(self)
            return
        status, value = answer
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Fake(ThreadingHTTPServer):
    """A server with an answer per path, which remembers what it was asked."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {"/api/generate": (200, LOADED), "/api/ps": listed(entry("m"))}
        self.asked: list[tuple[str, Any]] = []
        self.over = threading.Event()
        self.residency = Residency(f"http://127.0.0.1:{self.server_address[1]}")

    def hang(self, handler: Handler) -> None:
        """Say nothing until the test is over."""
        self.over.wait(LIMIT_S)
        handler.close_connection = True

    def hang_up(self, handler: Handler) -> None:
        """Close the connection without an answer."""
        handler.close_connection = True

    def break_off(self, handler: Handler) -> None:
        """Promise more than is sent."""
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"mod')
        handler.close_connection = True

    def handle_error(self, *_: object) -> None:
        """Say nothing when the client has gone."""


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.over.set()
        running.shutdown()
        thread.join(LIMIT_S)


@pytest.fixture
def nobody() -> Residency:
    """A residency at an address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Residency(f"http://127.0.0.1:{free.getsockname()[1]}")


def patiently() -> float:
    return LIMIT_S


# --- Is it there?


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ((200, {"version": "0.32.15"}), "0.32.15"),
        ((200, {"version": 3}), "3"),
        ((200, {}), ""),
        ((200, b"not JSON"), ""),
        ((200, ["0.32.15"]), ""),
        ((503, {"version": "0.32.15"}), None),
        ((404, b""), None),
    ],
)
def test_a_server_is_there_when_it_answers_200(fake: Fake, answer: Answer, version: str | None) -> None:
    fake.answers["/api/version"] = answer
    assert fake.residency.version() == version


def test_a_server_that_does_not_answer_yet_has_no_version(fake: Fake, nobody: Residency) -> None:
    assert nobody.version() is None
    for silence in (fake.hang_up, fake.break_off):
        fake.answers["/api/version"] = silence
        assert fake.residency.version() is None
    fake.answers["/api/version"] = (200, {"version": "1"})
    assert fake.residency.version() == "1"


def test_a_server_that_accepts_and_is_silent_is_asked_again(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.residency.CONNECT_TIMEOUT_S", 0.2)
    fake.answers["/api/version"] = fake.hang
    assert fake.residency.version() is None


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_is_not_asked_for_the_server(fake: Fake, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    fake.answers["/api/version"] = (200, {"version": "1"})
    assert fake.residency.version() == "1"


# --- Loading


def test_a_model_is_loaded_as_jobs_will_want_it(fake: Fake) -> None:
    assert fake.residency.load("m", patiently) == Resident("m", size_bytes=100, size_vram_bytes=60, context_length=4096)
    # Any option here that a job does not have would make that job start another runner.
    assert fake.asked == [("/api/generate", {"model": "m", "stream": False}), ("/api/ps", None)]


def test_a_model_for_embeddings_is_loaded_the_way_it_can_be(fake: Fake) -> None:
    fake.answers["/api/generate"] = (400, {"error": '"m" does not support generate'})
    fake.answers["/api/embed"] = (200, {"model": "m", "embeddings": []})
    assert fake.residency.load("m", patiently).size_bytes == 100
    assert [path for path, _ in fake.asked] == ["/api/generate", "/api/embed", "/api/ps"]
    assert fake.asked[1][1] == {"model": "m"}
    fake.answers["/api/embed"] = (500, {"error": "out of memory"})
    with pytest.raises(WeightsUnavailable, match="out of memory"):
        fake.residency.load("m", patiently)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, {"error": "model 'm' not found"}), "model 'm' not found"),
        ((500, {"error": "unable to load model: /blobs/sha256-x"}), "unable to load model: /blobs/sha256-x"),
        ((400, {"error": "image generation models are not currently supported"}), "image generation"),
        ((502, b"bad gateway"), "bad gateway"),
        ((500, b""), "HTTP 500"),
        ((500, {"error": ""}), '{"error": ""}'),
    ],
)
def test_why_a_model_cannot_be_loaded_is_in_the_servers_words(fake: Fake, answer: Answer, words: str) -> None:
    fake.answers["/api/generate"] = answer
    with pytest.raises(WeightsUnavailable) as caught:
        fake.residency.load("m", patiently)
    assert caught.value.message.startswith("the server could not load model 'm': ")
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("path", ["/api/generate", "/api/ps"])
def test_a_server_that_goes_away_while_loading_has_exited(fake: Fake, path: str) -> None:
    for end in (fake.hang_up, fake.break_off):
        fake.answers[path] = end
        with pytest.raises(ServerExited, match="connection lost during load"):
            fake.residency.load("m", patiently)


def test_without_a_server_there_is_no_loading(nobody: Residency) -> None:
    with pytest.raises(ServerExited, match="connection lost during load"):
        nobody.load("m", patiently)


def test_the_limit_of_a_load_is_asked_for_when_the_request_is_out(fake: Fake) -> None:
    def limit_s() -> float:
        # Asked for before, the request would never come.
        until_s = time.monotonic() + LIMIT_S
        while not fake.asked and time.monotonic() < until_s:
            time.sleep(0.01)
        arrived.append([path for path, _ in fake.asked])
        return LIMIT_S

    arrived: list[list[str]] = []
    fake.residency.load("m", limit_s)
    assert arrived[0] == ["/api/generate"]


def test_a_mistake_found_meanwhile_ends_the_load(fake: Fake) -> None:
    def mistaken() -> float:
        raise ConfigInvalid("PORT: no number")

    fake.answers["/api/generate"] = fake.hang
    with pytest.raises(ConfigInvalid):
        fake.residency.load("m", mistaken)


def test_priming_runs_one_token_with_the_options_of_jobs(fake: Fake) -> None:
    fake.residency.prime("m", LIMIT_S)
    ((path, body),) = fake.asked
    assert path == "/api/generate"
    assert body["prompt"]
    # How much is to come is no option of the runner: it needs no other one.
    assert body["options"] == {"num_predict": 1}


def test_priming_that_is_refused_is_for_the_first_job_to_find_out(fake: Fake) -> None:
    fake.answers["/api/generate"] = (500, {"error": "broken"})
    fake.residency.prime("m", LIMIT_S)
    fake.answers["/api/generate"] = fake.hang_up
    with pytest.raises(ServerExited):
        fake.residency.prime("m", LIMIT_S)


def test_a_load_has_a_limit(fake: Fake) -> None:
    fake.answers["/api/generate"] = fake.hang
    with pytest.raises(ServerTimeout) as caught:
        fake.residency.load("m", lambda: 0.2)
    assert (caught.value.stage, caught.value.limit_s) == ("load", 0.2)


# --- What the server says about it


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("m:1b", "m:1b"),
        ("m", "m:latest"),
        ("hf.co/org/repo:Q4_K_M", "hf.co/org/repo:Q4_K_M"),
    ],
)
def test_the_model_is_found_among_others(fake: Fake, asked: str, name: str) -> None:
    fake.answers["/api/ps"] = listed(entry("other:1b", size=1), entry(name, size=7), entry("third:1b", size=2))
    assert fake.residency.load(asked, patiently).size_bytes == 7


def test_the_only_model_is_the_one_whatever_it_is_called(fake: Fake) -> None:
    # Names can be spelled in more than one way; what was loaded last is here.
    fake.answers["/api/ps"] = listed(entry("registry.ollama.ai/library/m:latest"))
    assert fake.residency.load("m", patiently) == Resident("m", 100, 60, 4096)


@pytest.mark.parametrize(
    "answer",
    [
        listed(),
        (200, {"models": None}),
        (200, {}),
        (200, b"null"),
        (500, {"error": "x"}),
        listed(entry("a:1"), entry("b:1")),
    ],
)
def test_a_model_that_is_not_listed_was_not_kept(fake: Fake, answer: Answer) -> None:
    fake.answers["/api/ps"] = answer
    with pytest.raises(BootError, match="does not list it as resident") as caught:
        fake.residency.load("m", patiently)
    assert "OLLAMA_KEEP_ALIVE" in caught.value.hint


def test_figures_the_server_leaves_out_are_zero(fake: Fake) -> None:
    fake.answers["/api/ps"] = listed({"name": "m:latest"})
    assert fake.residency.load("m", patiently) == Resident("m", 0, 0, 0)


# --- Where it is


@pytest.mark.parametrize(
    ("size", "vram", "on_gpu"),
    [(100, 100, True), (100, 101, True), (100, 99, False), (100, 0, False), (0, 0, False), (0, 5, False)],
)
def test_on_the_gpu_means_all_of_it(size: int, vram: int, *, on_gpu: bool) -> None:
    resident = Resident("m", size, vram, 4096)
    assert resident.on_gpu is on_gpu
    if on_gpu:
        require_gpu(resident)
    else:
        with pytest.raises(GpuUnusable, match=r"of 'm' is on a GPU") as caught:
            require_gpu(resident)
        assert "WORKER_ALLOW_CPU=1" in caught.value.hint


@pytest.mark.parametrize(
    ("size", "vram", "words"),
    [
        (1_000_000, 0, "only 0% of 'm' is on a GPU (0 of 1,000,000 bytes)"),
        (1_000_000, 500_000, "only 50% of"),
        (1_000_000, 999_999, "only 99% of"),
        (0, 0, "only 0% of"),
    ],
)
def test_how_much_is_on_the_gpu_is_said_and_never_all(size: int, vram: int, words: str) -> None:
    with pytest.raises(GpuUnusable) as caught:
        require_gpu(Resident("m", size, vram, 4096))
    assert caught.value.message.startswith(words)
