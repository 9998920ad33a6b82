from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import psutil
import pytest

from tests.fakes.api_server import until
from worker.local.engine.options import RunnerOptions
from worker.local.engine.reply import ApiError
from worker.local.engine.runner import STOPPED, Runner, RunnerSpec

NewSpec = Callable[..., RunnerSpec]
Runners = Callable[[], list[psutil.Process]]
FOREVER = float("inf")


@asynccontextmanager
async def running(spec: RunnerSpec, http: aiohttp.ClientSession) -> AsyncIterator[Runner]:
    runner = await Runner.start(spec, http, 60)
    try:
        yield runner
    finally:
        await runner.stop()


async def test_a_loaded_runner_knows_its_memory_and_is_gone_after_stop(
    new_spec: NewSpec, http: aiohttp.ClientSession, runners: Runners
) -> None:
    runner = await Runner.start(new_spec(), http, FOREVER)
    assert runner.alive
    assert runner.memory_bytes == 2.5 * 2**20
    (process,) = runners()
    await runner.stop()
    assert not runner.alive
    assert not process.is_running()


async def test_a_load_that_fails_carries_llamas_words(new_spec: NewSpec, http: aiohttp.ClientSession) -> None:
    with pytest.raises(ApiError) as caught:
        await Runner.start(new_spec("broken"), http, 60)
    assert caught.value.status == 500
    reason = "error loading model: tensor 'a' is not within the file bounds"
    assert caught.value.message == f"llama-server process has terminated: exit status 7: {reason}"


async def test_a_load_that_fails_without_a_word_carries_the_status(
    new_spec: NewSpec, http: aiohttp.ClientSession
) -> None:
    with pytest.raises(ApiError, match=r"has terminated: exit status 7$"):
        await Runner.start(new_spec("mute"), http, 60)


async def test_a_load_that_falls_silent_is_given_up(
    new_spec: NewSpec, http: aiohttp.ClientSession, runners: Runners
) -> None:
    with pytest.raises(ApiError, match="timed out waiting for llama-server to start"):
        await Runner.start(new_spec("quiet"), http, 0.3)
    assert runners() == []


async def test_a_load_that_keeps_logging_may_take_longer(new_spec: NewSpec, http: aiohttp.ClientSession) -> None:
    # It is ready after one second, and says something twenty times on the way.
    runner = await Runner.start(new_spec("chatty"), http, 0.7)
    await runner.stop()


async def test_a_cancelled_load_leaves_no_process(
    new_spec: NewSpec, http: aiohttp.ClientSession, runners: Runners
) -> None:
    load = asyncio.create_task(Runner.start(new_spec("quiet"), http, FOREVER))
    await until(runners)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    assert runners() == []


async def test_events_arrive_in_order(new_spec: NewSpec, http: aiohttp.ClientSession) -> None:
    async with running(new_spec(), http) as runner:
        events = [event async for event in runner.events("/completion", {"prompt": "x", "n_predict": 3})]
    assert [event["content"] for event in events] == ["t0 ", "t1 ", "t2 ", ""]
    assert events[-1]["timings"]["predicted_n"] == 3


async def test_a_refusal_keeps_status_and_body(new_spec: NewSpec, http: aiohttp.ClientSession) -> None:
    async with running(new_spec(), http) as runner:
        with pytest.raises(ApiError) as caught:
            [event async for event in runner.events("/completion", {"prompt": "refuse", "n_predict": 3})]
        assert runner.alive
    assert (caught.value.status, caught.value.message) == (400, '{"error": {"message": "no", "code": 400}}')


async def test_a_runner_that_dies_in_mid_answer_is_an_error(new_spec: NewSpec, http: aiohttp.ClientSession) -> None:
    async with running(new_spec(), http) as runner:
        with pytest.raises(ApiError, match="an error was encountered while running the model"):
            [event async for event in runner.events("/completion", {"prompt": "die", "n_predict": 3})]
        assert not runner.alive


async def test_a_dead_runner_is_an_error_at_once(
    new_spec: NewSpec, http: aiohttp.ClientSession, runners: Runners
) -> None:
    async with running(new_spec(), http) as runner:
        os.kill(runners()[0].pid, signal.SIGKILL)
        await until(lambda: runner._process.returncode is not None)
        with pytest.raises(ApiError) as caught:
            await runner.call("/tokenize", {"content": "x"})
    assert caught.value.message == STOPPED


@pytest.mark.parametrize(("slots", "together"), [(1, False), (2, True)])
async def test_as_many_requests_run_together_as_there_are_slots(
    new_spec: NewSpec, http: aiohttp.ClientSession, slots: int, *, together: bool
) -> None:
    begun: list[str] = []
    ended: list[str] = []

    async def ask(name: str) -> None:
        async for event in runner.events("/completion", {"prompt": name, "n_predict": 20}):
            begun.append(name) if event["content"] == "t0 " else None
            ended.append(name) if event["stop"] else None

    async with running(new_spec(slots=slots), http) as runner:
        first, second = asyncio.create_task(ask("first")), asyncio.create_task(ask("second"))
        await until(lambda: begun)
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert (len(begun) == 2) == together
        await asyncio.gather(first, second)
    assert sorted(ended) == ["first", "second"]


async def test_leaving_an_answer_frees_its_slot(new_spec: NewSpec, http: aiohttp.ClientSession) -> None:
    async with running(new_spec(), http) as runner:
        async with aclosing(runner.events("/completion", {"prompt": "x", "n_predict": 100_000})) as events:
            await anext(events)
        began = time.monotonic()
        answer = [event async for event in runner.events("/completion", {"prompt": "x", "n_predict": 1})]
    assert len(answer) == 2
    # The first answer would have taken a quarter of an hour.
    assert time.monotonic() - began < 60


async def test_embeddings_and_tokens(new_spec: NewSpec, http: aiohttp.ClientSession) -> None:
    async with running(new_spec(), http) as runner:
        assert await runner.embed("two words") == ([2.0, 0.0], 2)
        assert await runner.call("/tokenize", {"content": "a b c"}) == {"tokens": [0, 1, 2]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (RunnerSpec("/m", RunnerOptions(2048, 512, 0), 1, embedding=False), "-c 2048 -np 1 -b 512 --context-shift"),
        (
            RunnerSpec("/m", RunnerOptions(2048, 256, 3), 4, embedding=False),
            "-c 8192 -np 4 -b 256 -t 3 --context-shift",
        ),
        (RunnerSpec("/m", RunnerOptions(64, 512, 0, shift=False), 1, embedding=True), "-c 64 -np 1 -b 512 --embedding"),
    ],
)
def test_a_runner_is_started_with_llama_servers_flags(spec: RunnerSpec, expected: str) -> None:
    argv: Any = spec.argv
    assert argv[1:6] == ["-m", "worker.local.engine", "runner", "--model", "/m"]
    assert " ".join(argv[6:]) == expected
