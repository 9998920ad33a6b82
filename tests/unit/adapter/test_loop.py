from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.fakes.api_server import until
from worker.adapter.sdk import import_sdk
from worker.local.queue import Answer, LocalQueue
from worker.tally import Tally

import_sdk()  # before the module that imports the SDK: it is slow otherwise

from runpod.http_client import TooManyRequests  # noqa: E402 - after import_sdk
from runpod.serverless.modules.worker_state import JobsProgress  # noqa: E402 - after import_sdk

from worker.adapter.delivery import Delivery  # noqa: E402 - after import_sdk
from worker.adapter.loop import Loop  # noqa: E402 - after import_sdk

if TYPE_CHECKING:
    from tests.conftest import Written

LIMIT_S = 30.0

Fetch = Callable[[int], Awaitable[Any]]
Work = Callable[[str], Awaitable[None]]


class Flow:
    """Stands where JobFlow stands; remembers what the loop tells it."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.closed = 0

    def release(self, job_id: str) -> Tally | None:
        self.released.append(job_id)
        return Tally(chunks=1) if self.released.count(job_id) == 1 else None

    async def close(self) -> None:
        self.closed += 1


class Platform:
    """Jobs to hand out, what was asked for, and what is running."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[int] = []
        self.started: list[str] = []
        self.running: set[str] = set()
        self.most = 0
        self.hold = asyncio.Event()
        self.stops: asyncio.Queue[list[str]] = asyncio.Queue()
        self.changed = asyncio.Condition()
        self.post: Callable[[str], Awaitable[None]]

    async def fetch(self, _: object, free: int) -> Any:
        """Answer with the next scripted answer, raise it if it is an error, else hold the poll for good."""
        self.asked.append(free)
        await self._notify()
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def work(self, _session: object, _config: object, job: dict[str, Any]) -> None:
        """Run until `hold` is set."""
        self.started.append(job["id"])
        self.running.add(job["id"])
        self.most = max(self.most, len(self.running))
        await self._notify()
        try:
            await self.hold.wait()
            if job["input"] == "fails":
                raise UnicodeError("cannot be posted")
            if job["input"] == "posts":
                await self.post(job["id"])
        finally:
            self.running.discard(job["id"])

    async def fetch_stops(self, _: object) -> list[str]:
        return await self.stops.get()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(condition), LIMIT_S)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def jobs(*ids: str, job_input: object = None) -> list[dict[str, Any]]:
    return [{"id": job_id, "input": job_input} for job_id in ids]


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def quiet_sdk() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


class Running:
    """A loop with its platform, as a task."""

    def __init__(self, written: Written, *, concurrency: int, drain_s: float) -> None:
        self.platform = Platform()
        self.flow = Flow()
        self.loop = Loop({"handler": None})
        self.loop.flow = self.flow
        self.loop.delivery = Delivery(written.writer, limit_s=LIMIT_S)
        self.loop.writer = written.writer
        self.loop.concurrency = concurrency
        self.loop.drain_timeout_s = drain_s
        self.loop.on_start = lambda _: None
        self.loop.jobs_fetcher = self.platform.fetch
        self.loop.jobs_handler = self.platform.work
        self.loop.stop_signals_fetcher = self.platform.fetch_stops
        self.task: asyncio.Task[None] | None = None

    def start(self, *answers: Any) -> Platform:
        self.platform.answers += answers
        self.task = asyncio.create_task(self.loop.run())
        return self.platform

    async def ended(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.task), LIMIT_S)


Make = Callable[..., Running]


@pytest.fixture
async def make(written: Written) -> Any:
    made = []

    def _make(*, concurrency: int = 1, drain_s: float = LIMIT_S) -> Running:
        made.append(Running(written, concurrency=concurrency, drain_s=drain_s))
        return made[-1]

    yield _make
    for running in made:
        running.platform.hold.set()
        running.loop.kill_worker(0)
        if running.task is not None:
            await running.ended()
    assert JobsProgress().get_job_count() == 0


async def test_a_freed_slot_asks_at_once(make: Make, written: Written) -> None:
    running = make()
    platform = running.start(*(jobs(f"J{n}") for n in range(50)))
    platform.hold.set()
    await platform.until(lambda: len(platform.asked) == 51)
    assert platform.started == [f"J{n}" for n in range(50)]
    assert platform.most == 1
    assert [r["job_id"] for r in written.all("job.finished")] == platform.started
    assert written.records[0]["event"] == "loop.started"


async def test_it_asks_for_as_many_jobs_as_there_are_free_slots(make: Make) -> None:
    running = make(concurrency=4)
    platform = running.start(jobs("A"), jobs("B", "C"), jobs("D"))
    await platform.until(lambda: len(platform.started) == 4)
    assert platform.asked == [4, 3, 1]
    platform.hold.set()
    await platform.until(lambda: len(platform.asked) == 4)
    assert platform.asked[3] == 4
    assert platform.most == 4


async def test_jobs_on_top_of_what_was_asked_for_are_run_too(make: Make) -> None:
    running = make(concurrency=2)
    platform = running.start(jobs("A", "B", "C"))
    await platform.until(lambda: len(platform.started) == 3)
    platform.hold.set()
    await platform.until(lambda: len(platform.asked) == 2)
    assert platform.asked == [2, 2]


async def test_a_job_delivered_twice_runs_once(make: Make) -> None:
    running = make(concurrency=3)
    platform = running.start(jobs("A", "A"), jobs("A"), jobs("B"))
    await platform.until(lambda: "B" in platform.started)
    assert platform.started == ["A", "B"]
    platform.answers += [jobs("A")]
    platform.hold.set()
    await platform.until(lambda: len(platform.started) == 3)
    assert platform.started == ["A", "B", "A"]


async def test_garbage_is_passed_over_and_slows_the_asking_down(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("worker.adapter.loop.asyncio.sleep", note)
    running = make()
    garbage = [None, 3, [], {}, {"id": 5, "input": 1}, {"input": {}}]
    platform = running.start(*[garbage] * 9, *[ValueError("not JSON")] * 2, jobs("A"), garbage)
    await platform.until(lambda: platform.started == ["A"])
    assert pauses[:11] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]
    platform.hold.set()
    await platform.until(lambda: len(platform.asked) == 14)
    # A job has come in between: the platform is well again.
    assert pauses[11:] == [0.05]


async def test_an_empty_queue_that_answers_at_once_is_not_hammered(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("worker.adapter.loop.asyncio.sleep", note)
    running = make()
    platform = running.start(*[None, []] * 4)
    await platform.until(lambda: len(platform.asked) == 9)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


async def test_too_many_requests_is_waited_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.adapter.loop.LONGEST_PAUSE_S", 0.2)
    running = make()
    refusal = TooManyRequests(None, (), status=429, message="slow down")
    began = asyncio.get_running_loop().time()
    platform = running.start(refusal, jobs("A"))
    await platform.until(lambda: platform.started == ["A"])
    assert asyncio.get_running_loop().time() - began > 0.2


async def test_a_stop_signal_cancels_that_job_and_no_other(make: Make, written: Written) -> None:
    running = make(concurrency=2)
    platform = running.start(jobs("A", "B"), jobs("C"))
    await platform.until(lambda: len(platform.started) == 2)
    platform.stops.put_nowait(["unknown", "A", "A"])
    await platform.until(lambda: "C" in platform.started)
    assert platform.running == {"B", "C"}
    assert set(running.flow.released) == {"A"}
    assert written.one("job.cancelled")["job_id"] == "A"
    assert written.all("job.finished") == []


async def test_a_job_that_fails_outside_its_handler_frees_its_slot(make: Make) -> None:
    running = make()
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    platform = running.start(jobs("A", job_input="fails"), jobs("B"))
    platform.hold.set()
    await platform.until(lambda: "B" in platform.started)
    assert "A" in running.flow.released
    running.loop.kill_worker()
    await running.ended()
    running.task = None
    assert errors == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_jobs_finish_and_takes_no_new_one(
    make: Make, written: Written, number: signal.Signals
) -> None:
    running = make(concurrency=2)
    platform = running.start(jobs("A"))
    await platform.until(lambda: len(platform.asked) == 2)
    os.kill(os.getpid(), number)
    while not written.all("worker.stopping"):  # noqa: ASYNC110 - nothing announces a signal
        await asyncio.sleep(0.01)
    platform.answers += [jobs("B")]
    platform.hold.set()
    await running.ended()
    assert platform.started == ["A"]
    assert written.one("worker.stopping")["reason"] == number.name
    assert written.one("job.finished")["job_id"] == "A"
    assert running.flow.closed == 1


async def test_an_idle_worker_gives_its_poll_up(make: Make) -> None:
    running = make()
    platform = running.start()
    await platform.until(lambda: len(platform.asked) == 1)
    running.loop.kill_worker()
    await running.ended()
    assert platform.started == []


@pytest.mark.parametrize(("limit_s", "started"), [(None, ["A"]), (0.5, [])], ids=["signal", "the server is gone"])
async def test_a_job_under_way_is_waited_for_while_there_is_a_server(
    make: Make, limit_s: float | None, started: list[str]
) -> None:
    running = make()
    asked = asyncio.Event()

    async def on_the_wire(_: object, __: int) -> Any:
        asked.set()
        # Nothing of the loop's decides when it arrives.
        await asyncio.sleep(0.1)
        return jobs("A")

    running.loop.jobs_fetcher = on_the_wire
    platform = running.start()
    platform.hold.set()
    await asyncio.wait_for(asked.wait(), LIMIT_S)
    running.loop.kill_worker(limit_s)
    await running.ended()
    assert platform.started == started


async def test_a_job_that_arrives_with_the_signal_is_run(make: Make) -> None:
    running = make()

    async def last_moment(_: object, free: int) -> Any:
        running.platform.asked.append(free)
        running.loop.kill_worker()
        await asyncio.sleep(0)
        return jobs("A")

    running.loop.jobs_fetcher = last_moment
    platform = running.start()
    platform.hold.set()
    await running.ended()
    assert platform.started == ["A"]


async def test_jobs_longer_than_the_drain_limit_are_given_back(make: Make, written: Written) -> None:
    running = make(concurrency=2, drain_s=0.1)
    platform = running.start(jobs("A", "B"))
    await platform.until(lambda: len(platform.started) == 2)
    running.loop.kill_worker()
    await running.ended()
    assert {r["job_id"] for r in written.all("job.cancelled")} == {"A", "B"}
    assert set(running.flow.released) == {"A", "B"}


async def test_a_stop_signal_is_heard_while_other_jobs_finish(make: Make, written: Written) -> None:
    running = make(concurrency=2)
    platform = running.start(jobs("A", "B"))
    await platform.until(lambda: len(platform.started) == 2)
    running.loop.kill_worker()
    for job_id in ("unknown", "A"):
        # Two polls: the first one had begun before the drain.
        platform.stops.put_nowait([job_id])
    await until(lambda: written.all("job.cancelled"))
    assert written.one("job.cancelled")["job_id"] == "A"
    assert platform.running == {"B"}
    platform.hold.set()
    await running.ended()
    assert written.one("job.finished")["job_id"] == "B"


async def test_a_result_nobody_took_in_time_is_written_out_and_not_called_finished_or_cancelled(
    make: Make, written: Written, session: aiohttp.ClientSession, queue: LocalQueue
) -> None:
    running = make(concurrency=2, drain_s=0.5)
    queue.faults.done.always(Answer(503))
    running.platform.post = lambda job_id: running.loop.delivery.transmit(
        session, f"{queue.api_url}/local/job-done/w1/{job_id}?gpu=X", f'{{"output":"{job_id}"}}'
    )
    platform = running.start(jobs("A", job_input="posts"), jobs("B"))
    await platform.until(lambda: len(platform.started) == 2)
    platform.hold.set()
    await until(lambda: written.all("job.finished") and written.all("result.retried"))
    running.loop.kill_worker()
    await running.ended()
    lost = written.one("result.undelivered")
    assert (lost["job_id"], lost["body"]) == ("A", '{"output":"A"}')
    assert written.one("job.finished")["job_id"] == "B"
    assert written.all("job.cancelled") == []
    assert not running.loop.delivery.has_lost("A")


async def test_a_refused_result_is_not_called_finished(
    make: Make, written: Written, session: aiohttp.ClientSession, queue: LocalQueue
) -> None:
    running = make()
    queue.faults.done.add(Answer(400))
    running.platform.post = lambda job_id: running.loop.delivery.transmit(
        session, f"{queue.api_url}/local/job-done/w1/{job_id}?gpu=X", "{}"
    )
    platform = running.start(jobs("A", job_input="posts"), jobs("B"))
    platform.hold.set()
    await until(lambda: written.all("job.finished"))
    assert written.one("result.undelivered")["job_id"] == "A"
    assert written.one("job.finished")["job_id"] == "B"


async def test_a_thread_can_end_it_with_a_limit_of_its_own(make: Make, written: Written) -> None:
    running = make(drain_s=600)
    platform = running.start(jobs("A"))
    await platform.until(lambda: platform.started == ["A"])
    thread = threading.Thread(target=running.loop.kill_worker, args=(0.05,))
    thread.start()
    await running.ended()
    thread.join()
    assert written.one("job.cancelled")["job_id"] == "A"


async def test_ended_before_it_began_it_takes_nothing(make: Make) -> None:
    running = make()
    running.loop.handle_shutdown(signal.SIGTERM, None)
    platform = running.start(jobs("A"))
    await running.ended()
    assert platform.asked == []


async def test_it_can_be_ended_after_its_end(make: Make) -> None:
    running = make()
    running.start()
    running.loop.kill_worker()
    await running.ended()
    running.loop.kill_worker(0.1)
    assert not running.loop.is_alive()


async def test_it_shows_itself_before_it_takes_a_job(make: Make) -> None:
    running = make()
    seen: list[Any] = []
    running.loop.on_start = lambda loop: seen.append((loop, list(running.platform.asked)))
    platform = running.start(jobs("A"))
    await platform.until(lambda: platform.started == ["A"])
    assert seen == [(running.loop, [])]


async def test_what_runs_is_what_the_ping_reports(make: Make) -> None:
    running = make(concurrency=2)
    platform = running.start(jobs("A", "B"))
    await platform.until(lambda: len(platform.started) == 2)
    assert sorted(JobsProgress().get_job_list().split(",")) == ["A", "B"]
