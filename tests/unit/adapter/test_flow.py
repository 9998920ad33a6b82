from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.api_server import ApiServer
from worker.adapter.flow import JobFlow
from worker.config import load
from worker.local.process import free_port, wait_for
from worker.outset import outset
from worker.references import Wanted
from worker.shelf import Shelf
from worker.sources.chain import Placed

if TYPE_CHECKING:
    from tests.conftest import Written

LIMIT_S = 30.0
TEXT = "The quick brown 🦊 jumps over 怠け者の dog"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
DEFAULTS = {
    "text": TEXT,
    "tokens": 0,
    "tokens_per_s": 0,
    "first_token_delay_s": 0,
    "refuse_status": 0,
    "die_at_token": -1,
    "drop_at_token": -1,
    "close_at_token": -1,
    "error_at_token": -1,
    "hang_at_token": -1,
}


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer("fake", tmp_path_factory.mktemp("fake"), FAKE_MODELS="m") as server:
        yield server


@pytest.fixture
def turn(fake: ApiServer) -> Iterator[Callable[..., None]]:
    """Turn knobs of the server for one test."""
    yield lambda **knobs: fake.post("/fake/script", knobs)
    fake.post("/fake/script", DEFAULTS)


def stats(fake: ApiServer) -> dict[str, Any]:
    return fake.get("/fake/stats").json()


async def until(condition: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(wait_for, condition, LIMIT_S)


def shelf(environ: dict[str, str]) -> Shelf:
    def bring(wanted: Wanted) -> Placed:
        raise AssertionError(f"{wanted} is not to be brought")

    start = outset(environ)
    return Shelf(start.wanted.name.short, start, pull=False, bring=bring)


MakeFlow = Callable[..., JobFlow]


@pytest.fixture
async def make_flow(fake: ApiServer, written: Written) -> AsyncIterator[MakeFlow]:
    flows = []

    def _make(**settings: str) -> JobFlow:
        environ = {"RUNPOD_WEBHOOK_GET_JOB": "http://x/$ID?a", "OLLAMA_MODEL": "m", "OLLAMA_HOST": fake.url, **settings}
        flows.append(JobFlow(load(environ), written.writer, shelf(environ)))
        return flows[-1]

    yield _make
    for flow in flows:
        await flow.close()


@pytest.fixture
def flow(make_flow: MakeFlow) -> JobFlow:
    return make_flow()


async def values(flow: JobFlow, job_input: Any, job_id: str = "J") -> list[Any]:
    """Take what the SDK would take: everything up to an error."""
    taken = []
    async for value in flow.handle({"id": job_id, "input": job_input}):
        taken.append(value)
        if isinstance(value, dict) and value.get("error"):
            break
    return taken


def openai(**body: Any) -> dict[str, Any]:
    return {"openai_route": "/v1/chat/completions", "openai_input": {"model": "m", **CHAT, **body}}


async def test_a_whole_answer_is_one_object_with_its_events(flow: JobFlow, written: Written, turn: Any) -> None:
    turn(text=TEXT)
    (answer,) = await values(flow, CHAT)
    assert answer["message"]["content"] == TEXT
    assert [(r["event"], r["job_id"]) for r in written.records] == [
        ("job.accepted", "J"),
        ("job.opened", "J"),
        ("job.token_received", "J"),
        ("job.chunk_posted", "J"),
    ]
    assert written.one("job.opened")["route"] == "/api/chat"
    tally = flow.release("J")
    assert tally is not None
    assert (tally.chunks, tally.output_tokens) == (1, answer["eval_count"])
    assert flow.release("J") is None


async def test_the_first_token_travels_alone_and_the_rest_with_what_is_there(flow: JobFlow, turn: Any) -> None:
    turn(text=TEXT)
    chunks = []
    async for chunk in flow.handle({"id": "J", "input": {**CHAT, "stream": True}}):
        chunks.append(json.loads(chunk))
        # The post of the first chunk takes as long as the whole answer.
        await asyncio.sleep(0.3)
    texts = [chunk["message"]["content"] for chunk in chunks]
    assert texts[0] == "The"
    assert "".join(texts) == TEXT
    assert len(chunks) <= 4
    assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_an_event_stream_is_passed_on_as_text(flow: JobFlow, turn: Any) -> None:
    turn(text=TEXT)
    text = "".join(await values(flow, openai(stream=True, stream_options={"include_usage": True})))
    assert text.endswith("data: [DONE]\n\n")
    frames = [json.loads(frame[6:]) for frame in text.split("\n\n")[:-2]]
    deltas = [c["delta"].get("content", "") for frame in frames for c in frame["choices"]]
    assert "".join(deltas) == TEXT
    tally = flow.release("J")
    assert tally is not None
    assert tally.output_tokens == frames[-1]["usage"]["completion_tokens"]


async def test_an_invalid_native_job_fails_with_one_sentence(flow: JobFlow, written: Written) -> None:
    (answer,) = await values(flow, {"promt": "hi"})
    assert answer == {
        "error": "unknown field 'promt' (did you mean 'prompt'?). See Jobs in the README for what a job may look like"
    }
    failed = written.one("job.failed")
    assert (failed["code"], failed["status"]) == ("invalid_request_error", 400)
    assert written.all("job.opened") == []
    assert flow.release("J") is None


@pytest.mark.parametrize("stream", [False, True])
async def test_an_openai_client_gets_an_openai_error(flow: JobFlow, *, stream: bool) -> None:
    (text,) = await values(flow, openai(model="absent", stream=stream))
    if stream:
        assert text.startswith("data: {")
        assert text.endswith("\n\ndata: [DONE]\n\n")
        text = text[6:].partition("\n")[0]
    error = json.loads(text)["error"]
    assert (error["type"], error["code"]) == ("not_found_error", "not_found_error")
    assert "model 'absent' not found" in error["message"]


async def test_openai_errors_can_fail_the_job_instead(make_flow: MakeFlow) -> None:
    (answer,) = await values(make_flow(WORKER_OPENAI_ERRORS="fail"), openai(model="absent"))
    assert answer["error"].startswith("model 'absent' not found")


async def test_an_error_worth_a_retry_fails_an_openai_job_that_has_sent_nothing(flow: JobFlow, turn: Any) -> None:
    turn(drop_at_token=0)
    (answer,) = await values(flow, openai(stream=True))
    assert answer == {
        "error": "the connection to the server was lost. Nothing is wrong with the request: send it again"
    }


async def test_after_the_first_frame_the_error_is_a_frame_too(flow: JobFlow, turn: Any) -> None:
    turn(text=TEXT, close_at_token=3, tokens_per_s=50)
    *frames, last = await values(flow, openai(stream=True))
    assert frames
    error = json.loads(last[6:].partition("\n")[0])["error"]
    assert error["message"].startswith("the server broke off in the middle of the answer")
    assert error["code"] == "server_lost"


async def test_what_came_before_a_failure_is_delivered(flow: JobFlow, turn: Any, written: Written) -> None:
    turn(text=TEXT, error_at_token=4, tokens_per_s=50, error="CUDA error")
    *chunks, last = await values(flow, {**CHAT, "stream": True})
    assert last == {"error": "CUDA error"}
    assert "".join(json.loads(chunk)["message"]["content"] for chunk in chunks) == "The quick brown 🦊"
    assert written.one("job.failed")["status"] == 500


async def test_everything_is_closed_before_the_error_is_handed_over(flow: JobFlow, turn: Any, fake: ApiServer) -> None:
    turn(hang_at_token=1)
    impatient = JobFlow(flow._config.model_copy(update={"stall_timeout_s": 0.2}), flow._events, flow._shelf)
    before = stats(fake)["cancelled"]
    generator = impatient.handle({"id": "J", "input": {**CHAT, "stream": True}})
    await anext(generator)
    assert (await anext(generator))["error"].startswith("the server sent nothing for 0.2 s")
    # The SDK stops here and leaves the generator to the garbage collector.
    await until(lambda: stats(fake)["cancelled"] == before + 1)
    assert impatient._pumps == {}
    await generator.aclose()
    await impatient.close()


async def test_a_cancelled_job_stops_generation(flow: JobFlow, turn: Any, fake: ApiServer) -> None:
    turn(tokens=100_000, tokens_per_s=20)
    before = stats(fake)["cancelled"]
    task = asyncio.create_task(values(flow, {**CHAT, "stream": True}))
    await until(lambda: "J" in flow._pumps and stats(fake)["tokens"] > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: stats(fake)["cancelled"] == before + 1)
    assert flow._pumps == {}


async def test_a_job_cancelled_in_the_middle_of_a_post_stops_generation(
    flow: JobFlow, turn: Any, fake: ApiServer
) -> None:
    turn(tokens=100_000, tokens_per_s=20)
    before = stats(fake)["cancelled"]
    generator = flow.handle({"id": "J", "input": {**CHAT, "stream": True}})
    await anext(generator)
    # The SDK is posting: nobody awaits the generator, so it does not learn of the cancellation.
    assert flow.release("J") is None
    await until(lambda: stats(fake)["cancelled"] == before + 1)
    await generator.aclose()


async def test_a_platform_that_does_not_take_chunks_slows_the_server_down(
    flow: JobFlow, turn: Any, fake: ApiServer
) -> None:
    total = 200_000
    turn(tokens=total)
    before = stats(fake)["tokens"]
    generator = flow.handle({"id": "J", "input": {**CHAT, "stream": True}})
    await anext(generator)
    seen = [-1, 0]

    def is_still() -> bool:
        seen.append(stats(fake)["tokens"])
        return seen[-1] == seen[-2] == seen[-3]

    await until(is_still)
    assert 0 < seen[-1] - before < total
    await generator.aclose()


async def test_jobs_run_side_by_side(flow: JobFlow, turn: Any) -> None:
    turn(text=TEXT, first_token_delay_s=0.2)
    answers = await asyncio.gather(*(values(flow, CHAT, f"J{n}") for n in range(20)))
    assert [answer[0]["message"]["content"] for answer in answers] == [TEXT] * 20


async def test_too_deep_an_input_is_a_sentence(flow: JobFlow) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    (answer,) = await values(flow, {"messages": [{"role": "user", "content": deep}]})
    assert answer == {"error": "the input is nested too deeply. Send a flatter object"}
    # Freed from the outside in: the interpreter would recurse otherwise.
    while deep:
        deep = deep.pop()


async def test_an_unforeseen_failure_says_so_without_its_details(
    flow: JobFlow, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.asynccontextmanager
    async def broken(_: object) -> AsyncIterator[None]:
        raise ZeroDivisionError("secret of the worker")
        yield

    monkeypatch.setattr(flow._proxy, "open", broken)
    (answer,) = await values(flow, CHAT)
    assert answer == {"error": "the worker failed on this job (ZeroDivisionError). Send it again"}
    assert "secret of the worker" in written.all("job.failed")[0]["message"]


async def test_a_server_that_is_gone_fails_the_job(make_flow: MakeFlow) -> None:
    (answer,) = await values(make_flow(OLLAMA_HOST=f"127.0.0.1:{free_port()}"), CHAT)
    assert answer["error"].startswith("the connection to the server was lost")


@pytest.mark.parametrize("job_input", [None, [], "text", 7, {}, {"messages": None}, {"openai_route": None}])
async def test_any_input_ends_in_one_sentence(flow: JobFlow, job_input: Any) -> None:
    (answer,) = await values(flow, job_input)
    text = answer["error"] if isinstance(answer, dict) else json.loads(answer)["error"]["message"]
    assert text
    assert "\n" not in text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_extended_openai_job_is_answered_as_any_other(
    flow: JobFlow, turn: Any, fake: ApiServer, path: str
) -> None:
    turn(text=TEXT)
    body = {"model": "m", **CHAT, "prompt": "hi", "options": {"top_k": 3, "num_ctx": 99}, "keep_alive": 60}
    (answer,) = await values(flow, {"openai_route": path, "openai_input": body})
    choice = answer["choices"][0]
    assert (choice["message"]["content"] if "chat" in path else choice["text"]) == TEXT
    sent = stats(fake)["last"]["/api/chat" if "chat" in path else "/api/generate"]
    assert sent["options"] == {"temperature": 1.0, "top_p": 1.0, "top_k": 3, "num_ctx": 99}
    assert sent["keep_alive"] == 60
    streamed = "".join(await values(flow, {"openai_route": path, "openai_input": {**body, "stream": True}}))
    assert streamed.endswith("data: [DONE]\n\n")
    tally = flow.release("J")
    assert tally is not None
    assert tally.output_tokens == answer["usage"]["completion_tokens"]
    assert tally.decode_ms


async def test_an_extended_openai_job_has_openais_errors(flow: JobFlow, turn: Any) -> None:
    body = {"openai_route": "/v1/chat/completions", "openai_input": {**CHAT, "model": "gone", "num_ctx": 9}}
    (text,) = await values(flow, body)
    assert json.loads(text)["error"]["type"] == "not_found_error"
    turn(text=TEXT, error_at_token=2, tokens_per_s=50, error="CUDA error")
    body["openai_input"] |= {"model": "m", "stream": True}
    *_, last = await values(flow, body)
    # The server's own OpenAI route would have lost these words.
    assert json.loads(last[6:].partition("\n")[0])["error"]["message"] == "CUDA error"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_openai_job_that_cannot_be_read_has_openais_error(flow: JobFlow, *, stream: bool) -> None:
    for asked in (
        {"openai_route": "/v1/nowhere", "openai_input": {"stream": stream}},
        {"openai_route": "/v1/chat/completions", "openai_input": {**CHAT, "options": 3, "stream": stream}},
    ):
        (text,) = await values(flow, asked)
        assert text.startswith("data: {") is stream
        assert json.loads(text.removeprefix("data: ").partition("\n")[0])["error"]["type"] == "invalid_request_error"
    (text,) = await values(flow, {"openai_route": "/v1/messages", "openai_input": {}})
    assert json.loads(text)["type"] == "error"


async def test_images_are_refused_where_the_projector_is_left_out(make_flow: MakeFlow, written: Written) -> None:
    job_input = {"prompt": "what is this?", "images": ["aGk="]}
    (answer,) = await values(make_flow(OLLAMA_SKIP_MMPROJ="1"), job_input)
    assert "OLLAMA_SKIP_MMPROJ" in answer["error"]
    assert written.one("job.failed")["status"] == 400
    (answer,) = await values(make_flow(), job_input)
    assert answer["error"].startswith("image input is not supported. The model")
    assert written.all("job.failed")[1]["status"] == 400


async def test_a_fast_line_does_not_turn_every_token_into_a_post(
    flow: JobFlow, turn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.adapter.flow.POSTS_PER_S", 5)
    turn(text=TEXT, tokens=60, tokens_per_s=100)
    chunks = await values(flow, {**CHAT, "stream": True})
    # 60 tokens take 0.6 s or more: the first one alone, and then one post in 0.2 s.
    contents = [json.loads(chunk)["message"]["content"] for chunk in chunks]
    assert contents[0] == "The"
    assert len(chunks) < 30
    assert json.loads(chunks[-1])["eval_count"] == 60


async def test_an_answer_that_is_complete_is_not_held_back(
    flow: JobFlow, turn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.adapter.flow.POSTS_PER_S", 1 / LIMIT_S)
    turn(text=TEXT)
    began_s = time.monotonic()
    assert "".join(json.loads(c)["message"]["content"] for c in await values(flow, {**CHAT, "stream": True})) == TEXT
    assert time.monotonic() - began_s < LIMIT_S
