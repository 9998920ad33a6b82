"""The clients people use: Runpod's own and OpenAI's, against a worker behind the queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import openai
import pytest

from worker.adapter.sdk import import_sdk
from worker.local.process import WorkerProcess, wait_for
from worker.local.queue import LocalQueue

import_sdk()  # importing runpod is slow otherwise

import runpod  # noqa: E402 - after import_sdk

if TYPE_CHECKING:
    from tests.conftest import Workers
    from tests.e2e.conftest import FakeControl

LIMIT_S = 60.0
KEY = "made-up-key"
TEXT = "Grüße aus 東京 🦙"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
CHAT = {"messages": MESSAGES}
MODEL = "smollm2:135m"


@pytest.fixture(scope="module")
def queue() -> Iterator[LocalQueue]:
    with LocalQueue(api_key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def worker(queue: LocalQueue, module_workers: Workers) -> WorkerProcess:
    started = module_workers.start(queue, MAX_CONCURRENCY="2", FAKE_TEXT=TEXT, FAKE_TOKENS_PER_S="50")
    started.wait_event("boot.ready", LIMIT_S)
    return started


@pytest.fixture
def endpoint(queue: LocalQueue, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> runpod.Endpoint:
    assert worker.process.poll() is None
    monkeypatch.setattr(runpod, "endpoint_url_base", queue.api_url)
    return runpod.Endpoint(queue.endpoint_id, api_key=KEY)


@pytest.fixture
def client(queue: LocalQueue, worker: WorkerProcess) -> Iterator[openai.OpenAI]:
    assert worker.process.poll() is None
    with openai.OpenAI(base_url=queue.openai_url, api_key=KEY, max_retries=0, timeout=LIMIT_S) as opened:
        yield opened


def test_runpod_run_and_poll(endpoint: runpod.Endpoint) -> None:
    job = endpoint.run({"input": CHAT})
    assert job.output(timeout=60)[0]["message"]["content"] == TEXT
    assert job.status() == "COMPLETED"


def test_runpod_run_sync(endpoint: runpod.Endpoint) -> None:
    (answer,) = endpoint.run_sync({"input": {"prompt": "hi"}}, timeout=60)
    assert (answer["response"], answer["done"]) == (TEXT, True)


def test_runpod_stream(endpoint: runpod.Endpoint, text_of: Callable[[list[Any]], str]) -> None:
    assert text_of(list(endpoint.run({"input": {**CHAT, "stream": True}}).stream())) == TEXT


def test_runpod_cancel(
    endpoint: runpod.Endpoint, worker: WorkerProcess, fake_of: Callable[[WorkerProcess], FakeControl]
) -> None:
    fake = fake_of(worker)
    fake.turn(tokens=100_000)
    job = endpoint.run({"input": {**CHAT, "stream": True}})
    worker.wait_event("job.token_received", LIMIT_S, job_id=job.job_id)
    job.cancel()
    worker.wait_event("job.cancelled", LIMIT_S, job_id=job.job_id)
    fake.turn(tokens=0)
    assert job.status() == "CANCELLED"


def test_openai_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 1


def test_openai_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == TEXT
    assert chunks[-1].usage is not None
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"


def test_openai_completion(client: openai.OpenAI) -> None:
    assert client.completions.create(model=MODEL, prompt="hi").choices[0].text == TEXT


def test_openai_models(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_openai_errors_are_openai_errors(client: openai.OpenAI) -> None:
    # The platform answers 200 whatever the worker says: the object is all the client can go by.
    answer = client.chat.completions.with_raw_response.create(model="absent", messages=MESSAGES)
    error = json.loads(answer.text)["error"]
    assert (error["type"], error["message"].partition(".")[0]) == ("not_found_error", "model 'absent' not found")


def test_openai_embeddings_of_a_chat_model_are_an_error(client: openai.OpenAI) -> None:
    answer = client.embeddings.with_raw_response.create(model=MODEL, input=["hi"], encoding_format="float")
    assert "does not support embeddings" in json.loads(answer.text)["error"]["message"]


def test_openai_stream_errors_are_raised(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="absent", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="model 'absent' not found"):
        list(stream)


def test_a_client_that_hangs_up_frees_its_slot(
    client: openai.OpenAI, worker: WorkerProcess, fake_of: Callable[[WorkerProcess], FakeControl]
) -> None:
    fake = fake_of(worker)
    before = fake.stats()["cancelled"]
    fake.turn(tokens=100_000)
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream:
        next(iter(stream))
    assert wait_for(lambda: fake.stats()["cancelled"] == before + 1, LIMIT_S)
    fake.turn(tokens=0)
