"""Whatever a client sends: it gets one sentence, and the worker answers the next job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from worker.local.process import WorkerProcess
from worker.local.queue import LocalQueue

if TYPE_CHECKING:
    from tests.conftest import Workers

LIMIT_S = 60.0
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
OPENAI = "/v1/chat/completions"
NATIVE = {
    "null": None,
    "list": [CHAT],
    "text": "hi",
    "number": 7,
    "empty": {},
    "neither": {"model": "smollm2:135m"},
    "both": {**CHAT, "prompt": "hi"},
    "unknown-field": {**CHAT, "temperatur": 1},
    "option-outside": {**CHAT, "temperature": 1},
    "prompt-is-a-number": {"prompt": 5},
    "messages-is-text": {"messages": "hi"},
    "no-messages": {"messages": []},
    "message-is-text": {"messages": ["hi"]},
    "message-without-role": {"messages": [{"content": "hi"}]},
    "stream-is-text": {**CHAT, "stream": "yes"},
    "options-is-a-list": {**CHAT, "options": [1]},
    "unknown-model": {**CHAT, "model": "no/such:model"},
    "unknown-model-stream": {**CHAT, "model": "no/such:model", "stream": True},
    "half-a-character": {**CHAT, "model": "\ud83e\ud83e"},
    "not-a-number": {**CHAT, "options": {"temperature": float("nan")}},
    "unknown-route": {"route": "/api/chatt", "body": CHAT},
    "admin-route": {"route": "/api/delete", "body": {"model": "smollm2:135m"}},
    "route-is-a-number": {"route": 5},
    "climbing-route": {"route": "/v1/models/../../api/delete"},
    "no-body": {"route": "/api/chat"},
    "body-is-no-json": {"route": "/api/chat", "body": "{not json"},
    "wrong-method": {"route": "/api/chat", "method": "GET", "body": CHAT},
    "vectors-of-a-chat-model": {"route": "/api/embed", "body": {"input": "hi"}},
}
OPENAI_INPUTS: dict[str, Any] = {
    "no-json": "{not json",
    "list": [CHAT],
    "number": 3,
    "no-messages": {"messages": []},
    "unknown-model": {**CHAT, "model": "absent"},
    "stream-is-text": {**CHAT, "stream": "yes"},
    "half-a-character": {**CHAT, "model": "\udc00"},
}


@pytest.fixture(scope="module")
def queue() -> Iterator[LocalQueue]:
    with LocalQueue() as running:
        yield running


@pytest.fixture(scope="module")
def worker(queue: LocalQueue, module_workers: Workers) -> WorkerProcess:
    return module_workers.start(queue, FAKE_TEXT="fine")


@pytest.fixture(autouse=True)
def lives_on(queue: LocalQueue, worker: WorkerProcess) -> Iterator[None]:
    """After every test the worker answers, and nobody has seen its insides."""
    yield
    assert worker.process.poll() is None, worker.tail()
    status = queue.wait(queue.submit(CHAT), LIMIT_S)
    assert status["output"][0]["message"]["content"] == "fine"
    assert not [line for line in worker.lines if "Traceback" in line], worker.tail()


def answer(queue: LocalQueue, job_input: Any) -> dict[str, Any]:
    status = queue.wait(queue.submit(job_input), LIMIT_S)
    assert "Traceback" not in json.dumps([status, list(queue.stream(status["id"], LIMIT_S))])
    return status


def is_sentence(text: str) -> bool:
    return isinstance(text, str) and len(text) > 10 and "\n" not in text and "worker failed" not in text


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_job_fails_with_a_sentence(queue: LocalQueue, name: str) -> None:
    status = answer(queue, NATIVE[name])
    assert status["status"] == "FAILED", status
    assert is_sentence(status["error"]), status
    assert "output" not in status


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", OPENAI_INPUTS)
def test_an_openai_job_ends_with_an_openai_error(queue: LocalQueue, name: str, *, stream: bool) -> None:
    openai_input = OPENAI_INPUTS[name]
    if stream and isinstance(openai_input, dict):
        openai_input = {"stream": True, **openai_input}
    status = answer(queue, {"openai_route": OPENAI, "openai_input": openai_input})
    if status["status"] == "FAILED":
        # What cannot even be read as a request has no shape to answer in.
        assert is_sentence(status["error"]), status
        return
    (text,) = status["output"]
    if text.startswith("data: "):
        text, _, end = text.removeprefix("data: ").partition("\n\n")
        assert end == "data: [DONE]\n\n"
    error = json.loads(text)["error"]
    assert is_sentence(error["message"])
    assert error["type"] in {"invalid_request_error", "not_found_error"}


def test_ten_megabytes_are_no_problem(queue: LocalQueue) -> None:
    status = answer(queue, {"prompt": "word" + " word" * 1_999_999})
    assert status["status"] == "COMPLETED"
    assert status["output"][0]["prompt_eval_count"] == 2_000_000


def test_a_line_break_in_an_input_stays_in_its_quotes(queue: LocalQueue) -> None:
    assert is_sentence(answer(queue, {"pro\nmt": 1})["error"])
