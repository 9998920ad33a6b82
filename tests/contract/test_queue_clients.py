"""Real clients against the queue, with the SDK's loop as its worker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
import runpod

from tests.fakes.sdk_process import SdkWorker
from worker.local.queue import Limits, LocalQueue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "made-up-key"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def queue() -> Iterator[LocalQueue]:
    """A queue that wants a key, with one worker of four slots whose handler is an async generator."""
    limits = Limits(take_hold_s=1, stop_hold_s=1, ping_interval_s=1, missed_pings=30)
    with LocalQueue(limits=limits, api_key=KEY) as running, SdkWorker(running, "stream", concurrency=4, aggregate=True):
        yield running


@pytest.fixture
def endpoint(queue: LocalQueue, monkeypatch: pytest.MonkeyPatch) -> runpod.Endpoint:
    monkeypatch.setattr(runpod, "endpoint_url_base", queue.api_url)
    return runpod.Endpoint(queue.endpoint_id, api_key=KEY)


@pytest.fixture
def client(queue: LocalQueue) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=queue.openai_url, api_key=KEY, max_retries=0, timeout=60) as opened:
        yield opened


def completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}


def frame(text: str) -> str:
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    body = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return f"data: {json.dumps(body)}\n\n"


def test_run_and_poll(endpoint: runpod.Endpoint) -> None:
    job = endpoint.run({"yields": ["a", {"b": 1}]})
    assert job.output(timeout=60) == ["a", {"b": 1}]
    assert job.status() == "COMPLETED"


def test_run_sync(endpoint: runpod.Endpoint) -> None:
    assert endpoint.run_sync({"yields": ["a"]}, timeout=60) == ["a"]


def test_stream(endpoint: runpod.Endpoint) -> None:
    job = endpoint.run({"yields": ["a", {"b": 1}, "c"], "gap_s": 0.1})
    assert list(job.stream()) == ["a", {"b": 1}, "c"]


def test_cancel(queue: LocalQueue, endpoint: runpod.Endpoint, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = endpoint.run({"yields": ["a"] * 100, "gap_s": 1, "note": str(note)})
    queue.record.wait_for(lambda record: record.chunks(job.job_id))
    assert job.cancel(timeout=60)["status"] == "CANCELLED"
    assert job.status() == "CANCELLED"
    queue.record.wait_for(lambda _: note.exists())


def test_health_and_purge(endpoint: runpod.Endpoint) -> None:
    assert endpoint.health(timeout=60)["workers"]["unhealthy"] == 0
    assert endpoint.purge_queue(timeout=60) == {"removed": 0, "status": "completed"}


def test_a_wrong_key(queue: LocalQueue, endpoint: runpod.Endpoint) -> None:
    stranger = runpod.Endpoint(queue.endpoint_id, api_key="wrong")
    with pytest.raises(RuntimeError, match="401"):
        stranger.run({"yields": []})
    assert endpoint.rp_client.api_key == KEY


def test_openai_whole_answer(client: openai.OpenAI) -> None:
    script = {"yields": [json.dumps(completion("hello"))]}
    answer = client.chat.completions.create(model="m", messages=MESSAGES, extra_body={"script": script})
    assert answer.choices[0].message.content == "hello"


def test_openai_whole_answer_from_an_object(client: openai.OpenAI) -> None:
    script = {"yields": [completion("hello")]}
    answer = client.chat.completions.create(model="m", messages=MESSAGES, extra_body={"script": script})
    assert answer.choices[0].message.content == "hello"


def test_openai_stream(queue: LocalQueue, client: openai.OpenAI) -> None:
    script = {"yields": [frame("hel"), frame("lo") + frame(" wörld"), "data: [DONE]\n\n"], "gap_s": 0.3}
    stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True, extra_body={"script": script})
    first = next(stream)
    assert first.choices[0].delta.content == "hel"
    assert queue.health()["jobs"]["inProgress"] == 1, "the first token is here before the job has ended"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "lo wörld"


def test_openai_error(client: openai.OpenAI) -> None:
    script = {"yields": [{"error": "no such model"}]}
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES, extra_body={"script": script})
    assert caught.value.response.json()["error"] == "no such model"


def test_openai_wrong_key(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_openai_get_reaches_the_worker_without_a_body(queue: LocalQueue, client: openai.OpenAI) -> None:
    taken = len(queue.record.takes())
    client.models.with_raw_response.list()
    queue.record.wait_for(lambda record: any(take.job_ids for take in record.takes()[taken - 1 :]))


def test_openai_client_that_hangs_up_stops_the_handler(
    queue: LocalQueue, client: openai.OpenAI, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    script = {"yields": [frame("a")] * 100, "gap_s": 0.5, "note": str(note)}
    stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True, extra_body={"script": script})
    next(stream)
    stream.close()
    queue.record.wait_for(lambda _: note.exists())
    assert queue.health()["jobs"]["inProgress"] == 0
