"""A load-balancing endpoint's worker, from its first moment to its last."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ollama
import openai
import pytest
import requests

from worker.local.process import WorkerProcess, free_port, wait_for
from worker.local.queue import LocalQueue

if TYPE_CHECKING:
    from tests.conftest import StartWorker, Workers
    from tests.e2e.conftest import FakeControl

    FakeOf = Callable[[WorkerProcess], FakeControl]

LIMIT_S = 60.0
MODEL = "smollm2:135m"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
TEXT = "Grüße aus 東京 🦙"
# Answers no request takes: more than a test waits for.
LONG = {"FAKE_TOKENS": "100000", "FAKE_TOKENS_PER_S": "20"}


class Endpoint:
    """A worker of a load balancer, and the ports it was given."""

    def __init__(self, start: Callable[..., WorkerProcess], **settings: str) -> None:
        self.port, self.port_health = free_port(), free_port()
        ports = {"PORT": str(self.port), "PORT_HEALTH": str(self.port_health)}
        # Nobody sets where jobs come from on such an endpoint.
        nowhere = {"RUNPOD_WEBHOOK_GET_JOB": ""}
        self.worker = start(WORKER_MODE="load_balancer", **ports, **nowhere, **settings)
        self.url = f"http://127.0.0.1:{self.port}"

    def resident(self) -> Endpoint:
        self.worker.wait_event("loop.started", LIMIT_S)
        return self

    def ping(self, port: int | None = None) -> int:
        """Return the status of health, 0 while nobody answers."""
        try:
            return requests.get(f"http://127.0.0.1:{port or self.port_health}/ping", timeout=LIMIT_S).status_code
        except requests.ConnectionError:
            return 0

    def stream(self) -> requests.Response:
        body = {"model": MODEL, "messages": MESSAGES}
        return requests.post(f"{self.url}/api/chat", json=body, stream=True, timeout=LIMIT_S)


@pytest.fixture
def start_endpoint(start_worker: StartWorker) -> Callable[..., Endpoint]:
    return lambda **settings: Endpoint(start_worker, **settings)


StartEndpoint = Callable[..., Endpoint]


@pytest.fixture(scope="module")
def endpoint(module_workers: Workers) -> Endpoint:
    with LocalQueue() as queue:
        return Endpoint(
            lambda **settings: module_workers.start(queue, **settings),
            FAKE_TEXT=TEXT,
            FAKE_TOKENS_PER_S="50",
            WORKER_API_KEY="k",
        ).resident()


def test_health_is_answered_before_the_model_is_there(start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(FAKE_LOAD_S="2")
    seen: list[int] = []
    assert wait_for(lambda: seen.append(endpoint.ping()) or seen[-1] == 200, LIMIT_S)
    told = [status for status in dict.fromkeys(seen) if status]
    assert told == [204, 200]
    assert endpoint.ping(endpoint.port) == 200
    records = endpoint.worker.records
    names = [record["event"] for record in records]
    assert names.index("load.finished") < names.index("boot.ready") < names.index("loop.started")
    assert "sdk_import.started" not in names, "no time is spent on what is not used"


def test_a_request_during_the_boot_is_told_to_come_back(start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(FAKE_LOAD_S="3")
    assert wait_for(lambda: endpoint.ping() == 204, LIMIT_S)
    answer = endpoint.stream()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "starting" in answer.json()["error"]


def test_openais_client(endpoint: Endpoint) -> None:
    with openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="k", max_retries=0, timeout=LIMIT_S) as client:
        assert MODEL in [model.id for model in client.models.list()]
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert answer.choices[0].message.content == TEXT
        chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
        assert len(chunks) > 3
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="absent", messages=MESSAGES)
    stranger = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_ollamas_client(endpoint: Endpoint) -> None:
    with ollama.Client(endpoint.url, headers={"Authorization": "Bearer k"}, timeout=LIMIT_S) as client:
        assert client.chat(MODEL, MESSAGES).message.content == TEXT
        assert "".join(part.message.content or "" for part in client.chat(MODEL, MESSAGES, stream=True)) == TEXT
        assert client.generate(MODEL, "hi").response == TEXT
        assert MODEL in [model.model for model in client.list().models]
        with pytest.raises(ollama.ResponseError) as caught:
            client.delete(MODEL)
    assert caught.value.status_code == 403


def test_a_client_that_hangs_up_frees_its_slot(start_endpoint: StartEndpoint, fake_of: FakeOf) -> None:
    endpoint = start_endpoint(**LONG).resident()
    with endpoint.stream() as answer:
        next(answer.iter_lines())
    fake = fake_of(endpoint.worker)
    assert wait_for(lambda: fake.stats()["cancelled"] == 1, LIMIT_S)
    endpoint.worker.wait_event("job.cancelled", LIMIT_S)


def test_a_signal_lets_requests_finish_and_takes_no_other(start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(FAKE_TOKENS="40", FAKE_TOKENS_PER_S="20").resident()
    with endpoint.stream() as answer:
        lines = answer.iter_lines()
        next(lines)
        endpoint.worker.signal(signal.SIGTERM)
        endpoint.worker.wait_event("worker.stopping", LIMIT_S)
        assert wait_for(lambda: endpoint.ping() == 503, LIMIT_S)
        assert endpoint.stream().status_code == 503
        assert b'"done":true' in list(lines)[-1]
    assert endpoint.worker.wait(LIMIT_S) == 0
    assert not [record for record in endpoint.worker.records if record["event"] == "job.cancelled"]


def test_a_request_longer_than_the_drain_is_cut_off(start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(**LONG, WORKER_DRAIN_TIMEOUT_S="0.5").resident()
    with endpoint.stream() as answer:
        lines = answer.iter_lines()
        next(lines)
        assert endpoint.worker.stop(LIMIT_S) == 0
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            list(lines)
    endpoint.worker.wait_event("job.cancelled", LIMIT_S)


def test_an_idle_worker_ends_at_once_and_two_signals_are_no_worse(start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint().resident()
    for _ in range(2):
        endpoint.worker.signal(signal.SIGTERM)
    assert endpoint.worker.wait(LIMIT_S) == 0
    assert endpoint.ping() == 0


def test_a_signal_ends_the_boot(start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(FAKE_LOAD_S="60")
    endpoint.worker.wait_event("load.started", LIMIT_S)
    assert endpoint.worker.stop(LIMIT_S) == 0
    assert endpoint.ping() == 0


def test_a_server_that_dies_ends_the_worker(start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(FAKE_DIE_AT_TOKEN="3", FAKE_TOKENS_PER_S="20").resident()
    with endpoint.stream() as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert b"the connection to the server was lost" in lines[-1]
    assert endpoint.worker.wait(LIMIT_S) == 13
    assert endpoint.worker.wait_event("boot.failed")["code"] == "server_exited"


def test_a_port_in_use_is_a_mistake_in_the_configuration(start_worker: StartWorker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = start_worker(WORKER_MODE="load_balancer", PORT=str(port))
        assert worker.wait(LIMIT_S) == 10
    assert f"port {port} cannot be listened on" in worker.wait_event("boot.failed")["message"]


def test_many_at_once(endpoint: Endpoint) -> None:
    answers: list[str] = []

    def ask() -> None:
        with ollama.Client(endpoint.url, headers={"Authorization": "Bearer k"}, timeout=LIMIT_S) as client:
            answers.append("".join(part.message.content or "" for part in client.chat(MODEL, MESSAGES, stream=True)))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert answers == [TEXT] * 16


def test_figures_are_told_beside_the_api_and_on_a_port_of_their_own_in_a_queues_worker(
    endpoint: Endpoint, start_worker: StartWorker, queue: LocalQueue
) -> None:
    key = {"Authorization": "Bearer k"}
    told = requests.get(f"{endpoint.url}/metrics", headers=key, timeout=LIMIT_S).text
    assert 'worker_boot_span_seconds{span="load"}' in told
    port = free_port()
    start_worker(PORT_METRICS=str(port)).wait_event("loop.started", LIMIT_S)
    queue.wait(queue.submit({"messages": MESSAGES}), LIMIT_S)
    counted = 'worker_jobs_total{outcome="finished",status=""} 1.0'
    assert wait_for(lambda: counted in requests.get(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S).text, LIMIT_S)
    told = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S).text
    for name in ("sdk", "server", "load", "launch"):
        assert f'worker_boot_span_seconds{{span="{name}"}}' in told
