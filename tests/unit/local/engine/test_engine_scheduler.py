from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.fakes import tiny_gguf
from tests.fakes.api_server import until
from worker.local.engine import scheduler as scheduler_module
from worker.local.engine.duration import FOREVER_S
from worker.local.engine.gguf import Gguf
from worker.local.engine.model import Model
from worker.local.engine.options import RunnerOptions
from worker.local.engine.reply import ApiError
from worker.local.engine.runner import Runner, RunnerSpec
from worker.local.engine.scheduler import BUSY, Scheduler
from worker.local.engine.settings import Settings
from worker.local.engine.store import Store, register_gguf
from worker.names import ModelName

OPTIONS = RunnerOptions(100, 512, 0)
NewScheduler = Callable[..., Scheduler]
NewModel = Callable[[str], Model]
Runners = Callable[[], list[psutil.Process]]


@pytest.fixture
def new_model(tmp_path: Path) -> NewModel:
    """Make a model whose runner behaves as its name says: see tests/fakes/llama_process.py."""
    register_gguf(tmp_path / "models", "tiny", tiny_gguf.embedding_model(tmp_path / "tiny.gguf"))
    manifest = Store(tmp_path / "models").manifest(ModelName.parse("tiny"))

    def make(path: str) -> Model:
        return Model(manifest=manifest, path=Path(path), head=Gguf({}, 0), config={})

    return make


@pytest.fixture
async def new_scheduler(
    http: aiohttp.ClientSession,
    new_spec: Callable[..., RunnerSpec],
    runners: Runners,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[NewScheduler]:
    monkeypatch.setattr(scheduler_module, "RunnerSpec", type(new_spec()))
    made: list[Scheduler] = []

    def make(**changes: float) -> Scheduler:
        settings = replace(Settings.from_environment({}), **changes)
        made.append(Scheduler(settings, http))
        return made[-1]

    yield make
    for scheduler in made:
        await scheduler.close()
    assert runners() == []


async def use(scheduler: Scheduler, model: Model, keep_alive_s: float | None = None) -> Runner:
    async with scheduler.use(model, OPTIONS, keep_alive_s) as runner:
        return runner


def names(scheduler: Scheduler) -> list[str]:
    return [str(entry.model.path) for entry in scheduler.loaded]


async def test_a_model_is_loaded_once_and_kept(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    first = await use(scheduler, new_model("a/serve"))
    assert await use(scheduler, new_model("a/serve")) is first
    assert names(scheduler) == ["a/serve"]


async def test_two_requests_at_once_share_one_load(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    first, second = await asyncio.gather(*(use(scheduler, new_model("a/serve")) for _ in range(2)))
    assert first is second


async def test_other_options_load_the_model_anew(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    model = new_model("a/serve")
    first = await use(scheduler, model)
    async with scheduler.use(model, replace(OPTIONS, context=50), None) as second:
        assert second is not first
        assert not first.alive
    assert len(scheduler.loaded) == 1


async def test_a_reload_waits_for_the_answers_in_progress(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    model = new_model("a/serve")
    async with scheduler.use(model, OPTIONS, None) as runner:
        reload = asyncio.create_task(_reload(scheduler, model))
        answer = [event async for event in runner.events("/completion", {"prompt": "x", "n_predict": 10})]
        assert not reload.done()
    assert answer[-1]["stop"]
    await reload


async def _reload(scheduler: Scheduler, model: Model) -> None:
    async with scheduler.use(model, replace(OPTIONS, context=50), None):
        pass


async def test_a_dead_runner_is_replaced(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    model = new_model("a/serve")
    async with scheduler.use(model, OPTIONS, None) as runner:
        with pytest.raises(ApiError):
            [event async for event in runner.events("/completion", {"prompt": "die", "n_predict": 3})]
    assert await use(scheduler, model) is not runner


async def test_a_failed_load_does_not_block_the_next(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    with pytest.raises(ApiError, match="exit status 7"):
        await use(scheduler, new_model("a/broken"))
    assert names(scheduler) == []
    await use(scheduler, new_model("a/serve"))


async def test_a_cancelled_load_lets_the_next_one_begin(
    new_scheduler: NewScheduler, new_model: NewModel, runners: Runners
) -> None:
    scheduler = new_scheduler()
    stuck = asyncio.create_task(use(scheduler, new_model("a/quiet")))
    await until(runners)
    next_one = asyncio.create_task(use(scheduler, new_model("a/serve")))
    stuck.cancel()
    assert (await next_one).alive
    with pytest.raises(asyncio.CancelledError):
        await stuck


@pytest.mark.parametrize(("queue", "refused"), [(0, 2), (1, 1), (2, 0)])
async def test_more_waiting_loads_than_allowed_are_refused(
    new_scheduler: NewScheduler, new_model: NewModel, queue: int, refused: int
) -> None:
    scheduler = new_scheduler(max_queue=queue)
    loads = [asyncio.create_task(use(scheduler, new_model("a/chatty"))) for _ in range(3)]
    results = await asyncio.gather(*loads, return_exceptions=True)
    errors = [result for result in results if isinstance(result, ApiError)]
    assert [(error.status, error.message) for error in errors] == [(503, BUSY)] * refused


async def test_a_loaded_model_is_served_while_another_loads(
    new_scheduler: NewScheduler, new_model: NewModel, runners: Runners
) -> None:
    scheduler = new_scheduler(max_queue=0)
    await use(scheduler, new_model("a/serve"))
    slow = asyncio.create_task(use(scheduler, new_model("b/quiet")))
    await until(lambda: len(runners()) == 2)
    assert (await use(scheduler, new_model("a/serve"))).alive
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_the_model_that_goes_first_makes_room(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler(max_loaded=2)
    await use(scheduler, new_model("a/serve"), FOREVER_S)
    await use(scheduler, new_model("b/serve"), 60)
    await use(scheduler, new_model("c/serve"), 600)
    assert names(scheduler) == ["a/serve", "c/serve"]


async def test_a_model_in_use_makes_no_room_while_another_can(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler(max_loaded=2)
    await use(scheduler, new_model("a/serve"), FOREVER_S)
    async with scheduler.use(new_model("b/serve"), OPTIONS, 1):
        await use(scheduler, new_model("c/serve"))
        assert set(names(scheduler)) == {"b/serve", "c/serve"}


async def test_no_keep_alive_unloads_after_the_answer(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    runner = await use(scheduler, new_model("a/serve"), 0)
    await until(lambda: not scheduler.loaded and not runner.alive)


async def test_the_last_request_decides_how_long_a_model_stays(
    new_scheduler: NewScheduler, new_model: NewModel
) -> None:
    scheduler = new_scheduler()
    await use(scheduler, new_model("a/serve"), 0.05)
    await use(scheduler, new_model("a/serve"), 3600)
    (entry,) = scheduler.loaded
    assert entry.planned_end > datetime.now(timezone.utc) + timedelta(minutes=50)
    await use(scheduler, new_model("a/serve"), 0.05)
    await until(lambda: not scheduler.loaded)


async def test_a_model_stays_for_ever_when_nobody_says_otherwise(
    new_scheduler: NewScheduler, new_model: NewModel
) -> None:
    scheduler = new_scheduler(keep_alive_s=FOREVER_S)
    await use(scheduler, new_model("a/serve"))
    (entry,) = scheduler.loaded
    assert entry.timer is None
    assert entry.planned_end.year > 2300


async def test_expiring_waits_for_the_answer_in_progress(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    model = new_model("a/serve")
    async with scheduler.use(model, OPTIONS, None) as runner:
        scheduler.expire(model)
        assert runner.alive
        assert names(scheduler) == ["a/serve"]
    await until(lambda: not scheduler.loaded and not runner.alive)


async def test_expiring_what_is_not_loaded_is_nothing(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    scheduler.expire(new_model("a/serve"))
    assert scheduler.loaded == []


async def test_closing_ends_every_runner(new_scheduler: NewScheduler, new_model: NewModel) -> None:
    scheduler = new_scheduler()
    loaded = [await use(scheduler, new_model(f"{place}/serve")) for place in "ab"]
    await scheduler.close()
    assert not any(runner.alive for runner in loaded)
