"""Every shape of the README's table, streamed or not, with each kind of end: what the table promises is what comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from worker.local.process import WorkerProcess
from worker.local.queue import LocalQueue
from worker.shapes import SHAPES

if TYPE_CHECKING:
    from tests.conftest import Workers
    from tests.e2e.conftest import FakeControl

    FakeOf = Callable[[WorkerProcess], FakeControl]

LIMIT_S = 60.0
TEXT = "Grüße aus 東京 🦙 und 👩‍🚀"
MODELS = "smollm2:135m=completion+audio,embed=embedding"
GENERATING = [name for name in SHAPES if name not in {"transcription", "embed", "models"}]
# Those whose errors are objects of the API that was called, and how their streams end.
OPENAI = {"openai": "data: [DONE]\n\n", "extended": "data: [DONE]\n\n", "messages": '"message_stop"}\n\n'}
SERVER_ERROR = "CUDA error: out of memory"
# An end, and whether another try may help.
ENDS: dict[str, tuple[dict[str, Any], bool]] = {
    "unknown model": ({}, False),
    "busy": ({"refuse_status": 503, "refuse_error": "server busy, please try again"}, False),
    "broken": ({"refuse_status": 500, "refuse_error": SERVER_ERROR}, False),
    "reset": ({"drop_at_token": 0}, True),
}
LATE_ENDS: dict[str, dict[str, Any]] = {
    "an error": {"error_at_token": 3, "error": SERVER_ERROR},
    "a reset": {"drop_at_token": 3},
    "no end": {"close_at_token": 3},
}
CALM = {"refuse_status": 0, "drop_at_token": -1, "error_at_token": -1, "close_at_token": -1, "tokens_per_s": 0}


@pytest.fixture(scope="module")
def queue() -> Iterator[LocalQueue]:
    with LocalQueue() as running:
        yield running


@pytest.fixture(scope="module")
def worker(queue: LocalQueue, module_workers: Workers) -> WorkerProcess:
    started = module_workers.start(queue, FAKE_TEXT=TEXT, FAKE_MODELS=MODELS)
    started.wait_event("loop.started", LIMIT_S)
    return started


@pytest.fixture
def fake(worker: WorkerProcess, fake_of: FakeOf) -> Iterator[FakeControl]:
    control = fake_of(worker)
    yield control
    control.turn(**CALM, text=TEXT, tokens=0)
    assert worker.process.poll() is None, "whatever a job ends with, the worker lives on"


def job_of(name: str, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    """Return the table's example with `more` in its body."""
    example = SHAPES[name].streamed() if stream else SHAPES[name].example
    if name == "embed":
        more = {"model": "embed", **more}
    inside = next((key for key in ("body", "openai_input") if key in example), None)
    return {**example, inside: {**example[inside], **more}} if inside else {**example, **more}


def ended(queue: LocalQueue, job_input: dict[str, Any]) -> dict[str, Any]:
    return queue.wait(queue.submit(job_input), LIMIT_S)


def error_of(name: str, output: str, *, stream: bool) -> dict[str, Any]:
    """Return the error object in the last thing an OpenAI or Anthropic client reads."""
    text = output
    if stream:
        events = [event for event in output.split("\n\n") if event]
        assert (events[-1] == "data: [DONE]") is (name != "messages")
        text = next(event for event in reversed(events) if '"error"' in event).rpartition("data: ")[2]
    value = json.loads(text)
    if name == "messages":
        assert value["type"] == "error"
    assert isinstance(value["error"]["message"], str)
    return dict(value["error"])


def is_sentence(text: str) -> bool:
    return bool(text) and "\n" not in text and "Traceback" not in text and not text.startswith("{")


# --- It works


@pytest.mark.parametrize("name", GENERATING)
def test_an_answer_is_what_the_table_says(
    queue: LocalQueue, fake: FakeControl, name: str, text_of: Callable[[list[Any]], str]
) -> None:
    del fake
    answer = ended(queue, job_of(name))
    assert answer["status"] == "COMPLETED"
    (output,) = answer["output"]
    assert isinstance(output, dict)
    assert text_of([output]) == TEXT
    assert (output.get("object") == "chat.completion") is (name in {"openai", "extended"})
    assert (output.get("type") == "message") is (name == "messages")
    assert output.get("done", True) is True


@pytest.mark.parametrize("name", GENERATING)
def test_a_stream_is_what_the_table_says(
    queue: LocalQueue, fake: FakeControl, name: str, text_of: Callable[[list[Any]], str]
) -> None:
    fake.turn(tokens_per_s=100)
    job_id = queue.submit(job_of(name, stream=True))
    chunks = list(queue.stream(job_id, LIMIT_S))
    answer = queue.wait(job_id, LIMIT_S)
    assert (answer["status"], answer["output"]) == ("COMPLETED", chunks)
    assert text_of(chunks) == TEXT
    assert len(chunks) > 1
    if name in OPENAI:
        assert "".join(chunks).endswith(OPENAI[name])
    else:
        assert [json.loads(chunk)["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_sound_becomes_text(queue: LocalQueue, fake: FakeControl) -> None:
    for stream in (False, True):
        (output,) = ended(queue, job_of("transcription", stream=stream, prompt="names: Grüße"))["output"]
        assert output == {"text": TEXT}
    sent = fake.stats()["last"]["/v1/audio/transcriptions"]
    assert (sent["language"], sent["prompt"], sent["file_bytes"]) == ("en", "names: Grüße", 4)


def test_vectors_and_names_are_not_streamed(queue: LocalQueue, fake: FakeControl) -> None:
    del fake
    for name, key in (("embed", "embeddings"), ("models", "data")):
        for stream in (False, True):
            (output,) = ended(queue, job_of(name, stream=stream))["output"]
            assert output[key]


# --- It does not


# The fake server resets streams only.
@pytest.mark.parametrize(
    ("end", "stream"), [(end, stream) for end in ENDS for stream in (False, True) if stream or end != "reset"]
)
@pytest.mark.parametrize("name", GENERATING)
def test_an_error_is_what_the_table_says(
    queue: LocalQueue, fake: FakeControl, name: str, end: str, *, stream: bool
) -> None:
    knobs, again = ENDS[end]
    fake.turn(**knobs)
    more = {"model": "absent"} if end == "unknown model" else {}
    answer = ended(queue, job_of(name, stream=stream, **more))
    if name in OPENAI and not again:
        assert answer["status"] == "COMPLETED"
        (output,) = answer["output"]
        told = error_of(name, output, stream=stream)["message"]
    else:
        assert answer["status"] == "FAILED"
        told = answer["error"]
    assert is_sentence(told)
    expected = {"unknown model": "not found", "busy": "busy", "broken": SERVER_ERROR, "reset": "connection"}[end]
    assert expected in told


@pytest.mark.parametrize("end", LATE_ENDS)
@pytest.mark.parametrize("name", GENERATING)
def test_what_came_before_a_late_error_is_there(
    queue: LocalQueue, fake: FakeControl, name: str, end: str, text_of: Callable[[list[Any]], str]
) -> None:
    fake.turn(**LATE_ENDS[end], tokens_per_s=50)
    job_id = queue.submit(job_of(name, stream=True))
    answer = queue.wait(job_id, LIMIT_S)
    chunks = [call.output for call in queue.record.chunks(job_id)]
    if name in OPENAI:
        assert answer["status"] == "COMPLETED"
        text = "".join(chunks)
        told = error_of(name, text, stream=True)["message"]
        chunks = [text[: text.index("event: error" if name == "messages" else 'data: {"error"')]]
    else:
        assert answer["status"] == "FAILED"
        told = answer["error"]
    assert is_sentence(told)
    assert TEXT.startswith(text_of(chunks))
    assert text_of(chunks).startswith("Grüße aus")


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("messages", {"max_tokens": None}, "max_tokens is required"),
        ("transcription", {"model": "absent"}, "not found"),
        ("transcription", {"model": "embed"}, "does not support chat"),
        ("transcription", {"file": ""}, "'file' is empty"),
    ],
)
def test_what_these_routes_refuse_is_an_error_of_their_api(
    queue: LocalQueue, fake: FakeControl, name: str, more: dict[str, Any], words: str
) -> None:
    del fake
    answer = ended(queue, job_of(name, **more))
    assert answer["status"] == "COMPLETED"
    (output,) = answer["output"]
    assert words in error_of(name, output, stream=False)["message"]


# --- It is large


def test_a_stream_larger_than_a_result_may_be_stays_whole(queue: LocalQueue, fake: FakeControl) -> None:
    word = "x" * 100_000
    fake.turn(text=word, tokens=230)
    for name in ("chat", "openai"):
        job_id = queue.submit(job_of(name, stream=True))
        answer = queue.wait(job_id, LIMIT_S)
        assert answer["status"] == "COMPLETED"
        (marker,) = answer["output"]
        assert "were all sent to /stream" in marker["omitted"]
        chunks = queue.record.chunks(job_id)
        assert sum(call.output.count("x" * 100) for call in chunks) >= 230 * 999
        assert all(call.answered == 200 for call in chunks)


def test_an_answer_larger_than_a_result_may_be_is_a_failure(queue: LocalQueue, fake: FakeControl) -> None:
    fake.turn(text="x" * 100_000, tokens=230)
    answer = ended(queue, job_of("chat"))
    assert answer["status"] == "FAILED"
    assert answer["error"].endswith("Ask for less, or stream it")


def test_a_word_larger_than_a_chunk_may_be_arrives_whole(
    queue: LocalQueue, fake: FakeControl, text_of: Callable[[list[Any]], str]
) -> None:
    word = '"é\\' * 400_000
    fake.turn(text=word)
    for name in ("chat", "prompt", "openai", "extended"):
        job_id = queue.submit(job_of(name, stream=True))
        chunks = list(queue.stream(job_id, LIMIT_S))
        assert max(call.size_bytes for call in queue.record.chunks(job_id)) <= 1_000_000
        assert text_of(["".join(chunks)] if name in OPENAI else chunks) == word
