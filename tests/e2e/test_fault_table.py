"""Faults of the platform and of the server, by name: each job reaches its client once, right or with a clear error."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.fake_script import Script as Knobs
from worker.local.process import WorkerProcess, wait_for
from worker.local.queue import EMPTY, GARBAGE, HTML, NOTHING, NULL, RESET, Answer, Limits, LocalQueue, Script, State

if TYPE_CHECKING:
    from tests.conftest import Workers
    from tests.e2e.conftest import FakeControl

FakeOf = Callable[[WorkerProcess], "FakeControl"]
TextOf = Callable[[list[Any]], str]
LIMIT_S = 60.0
TEXT = "Grüße aus 東京 🦙, one two three"
MESSAGES = [{"role": "user", "content": "hi"}]
STREAM = {"messages": MESSAGES, "stream": True}
JOBS = {
    "whole": {"messages": MESSAGES},
    "native": STREAM,
    "openai": {"openai_route": "/v1/chat/completions", "openai_input": STREAM},
}
CALLS = ("take", "done", "stream", "ping", "stop")
# A ping a second; a job no ping names for this many of them is given to the next worker, which may be the same.
LIMITS = Limits(ping_interval_s=1.0, missed_pings=3, take_hold_s=1.0, stop_hold_s=1.0)
USUAL = {
    "text": TEXT,
    "tokens": 0,
    "tokens_per_s": 0,
    "first_token_delay_s": 0,
    "refuse_status": 0,
    "refuse_error": Knobs.refuse_error,
    "split": False,
    "close_at_token": -1,
    "drop_at_token": -1,
    "error_at_token": -1,
    "garbage_at_token": -1,
    "hang_at_token": -1,
}
LOST = "the connection to the server was lost"
BROKE_OFF = "broke off"


@dataclass(frozen=True)
class Fault:
    """Scripted answers of the platform by call, knobs of the server, and what comes of it.

    Every job ends COMPLETED with the text unless `error` says what its sender reads instead; `whole_too` says that
    this goes for answers that are not streamed as well. `attempts` is how often the platform hands out a job at most.
    `in_stream` says that what the client of a stream reads as it comes is the text too.
    """

    platform: dict[str, list[Answer]] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    whole_too: bool = False
    attempts: int = 1
    text: str = TEXT
    in_stream: bool = True


def platform(call: str, *answers: Answer, attempts: int = 1, in_stream: bool = True) -> Fault:
    return Fault(platform={call: list(answers)}, attempts=attempts, in_stream=in_stream and attempts == 1)


def server(error: str = "", *, whole_too: bool = False, text: str = TEXT, **knobs: Any) -> Fault:
    return Fault(server={"text": text, **knobs}, error=error, whole_too=whole_too, text=text)


FAULTS = {
    "take-429": platform("take", Answer(429)),
    "take-500-and-502": platform("take", Answer(500), Answer(502, "<html>bad gateway</html>")),
    "take-401": platform("take", Answer(401)),
    "take-garbage": platform("take", GARBAGE, HTML, Answer(200, '[{"id": 5}]')),
    "take-empty": platform("take", EMPTY, NULL, NOTHING),
    "take-slow": platform("take", Answer(delay_s=0.5)),
    "take-reset": platform("take", RESET, RESET),
    "take-handed-out-but-lost-on-the-way": platform("take", Answer(reset=True, applied=True), attempts=2),
    "done-429": platform("done", Answer(429), Answer(429)),
    "done-500": platform("done", Answer(500), Answer(503), Answer(500)),
    "done-reset": platform("done", RESET, RESET),
    "done-slow": platform("done", Answer(delay_s=1.0)),
    "done-401-then-ok": platform("done", Answer(401), Answer(403)),
    "done-taken-but-answered-500": platform("done", Answer(500, applied=True), Answer(502, applied=True)),
    "done-taken-but-reset": platform("done", Answer(reset=True, applied=True)),
    "done-never-answered": platform("done", Answer(delay_s=300), attempts=2),
    "done-refused-for-good": platform("done", Answer(400), attempts=2),
    "stream-429-500-reset": platform("stream", Answer(429), Answer(500), RESET),
    "stream-refused-for-good": platform("stream", *[Answer(400)] * 3, in_stream=False),
    "stream-slow": platform("stream", Answer(delay_s=0.5), Answer(delay_s=0.5)),
    "stop-poll-500-garbage-reset": platform("stop", Answer(500), GARBAGE, RESET),
    "ping-500-and-reset": platform("ping", Answer(500), RESET),
    "server-500": server("out of order", whole_too=True, refuse_status=500, refuse_error="out of order"),
    "server-503": server("server busy", whole_too=True, refuse_status=503),
    "server-text-instead-of-an-error": server("HTTP", whole_too=True, refuse_status=599, refuse_error=""),
    "server-ends-mid-stream": server(BROKE_OFF, close_at_token=3),
    "server-resets-mid-stream": server(LOST, drop_at_token=3),
    # The server itself loses the words of a late error on its OpenAI routes.
    "server-error-mid-stream": server("CUDA error|broke off", error_at_token=3),
    "server-hangs-mid-stream": server("sent nothing for 2 s", hang_at_token=3),
    "server-hangs-before-the-first-token": server("sent nothing for 2 s", whole_too=True, first_token_delay_s=30),
    "server-garbage-mid-stream": server("no part of an answer", garbage_at_token=3),
    "server-one-huge-frame": server(text="x" * 3_000_000),
    "server-byte-by-byte": server(split=True),
    "server-slow-first-token": server(first_token_delay_s=1.0),
}


class Stand:
    """A queue, a worker and its server, shared by the faults that leave all three alive."""

    def __init__(self, queue: LocalQueue, worker: WorkerProcess, fake: FakeControl) -> None:
        self.queue = queue
        self.worker = worker
        self.fake = fake

    @property
    def scripts(self) -> dict[str, Script]:
        return {call: getattr(self.queue.faults, call) for call in CALLS}

    def arm(self, fault: Fault) -> None:
        self.fake.turn(**fault.server)
        for call, answers in fault.platform.items():
            for answer in answers:
                self.scripts[call].add(answer)

    def disarm(self) -> None:
        self.fake.turn(**USUAL)
        for script in self.scripts.values():
            script.clear()

    def final(self, job_id: str, *, attempts: int = 1) -> dict[str, Any]:
        """Return the status the client gets, once: after that no state follows, whatever else the worker posts."""
        status = self.queue.wait(job_id, LIMIT_S)
        states = [move.state for move in self.queue.record.history(job_id)]
        assert [state for state in states if state.is_final] == [states[-1]], states
        assert states.count(State.IN_PROGRESS) <= attempts, states
        assert "Traceback" not in json.dumps(status)
        return status


@pytest.fixture(scope="module")
def stand(module_workers: Workers, fake_of: FakeOf) -> Iterator[Stand]:
    with LocalQueue(limits=LIMITS) as queue:
        worker = module_workers.start(
            queue, MAX_CONCURRENCY="2", FAKE_TEXT=TEXT, WORKER_STALL_TIMEOUT_S="2", WORKER_DELIVERY_TIMEOUT_S="3"
        )
        worker.wait_event("loop.started", LIMIT_S)
        yield Stand(queue, worker, fake_of(worker))
        assert worker.process.poll() is None, worker.tail()
        assert worker.stop() == 0


@pytest.fixture(autouse=True)
def peace(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every fault the worker answers as if nothing had been."""
    yield
    if "stand" not in request.fixturenames:
        return
    stand: Stand = request.getfixturevalue("stand")
    stand.disarm()
    for job in JOBS.values():
        assert stand.final(stand.queue.submit(job))["status"] == "COMPLETED", stand.worker.tail()


@pytest.mark.parametrize("name", FAULTS)
def test_every_job_reaches_its_client_once(stand: Stand, text_of: TextOf, name: str) -> None:
    fault = FAULTS[name]
    stand.arm(fault)
    ids = {shape: stand.queue.submit(job) for shape, job in JOBS.items()}
    for shape, job_id in ids.items():
        status = stand.final(job_id, attempts=fault.attempts)
        if fault.error and (shape != "whole" or fault.whole_too):
            assert any(words in complaint(status) for words in fault.error.split("|")), status
            continue
        assert status["status"] == "COMPLETED", status
        assert text_of(joined(status["output"], shape)) == fault.text
        if fault.in_stream and shape != "whole":
            assert text_of(joined(list(stand.queue.stream(job_id, LIMIT_S)), shape)) == fault.text
    assert wait_for(lambda: not any(script.left for script in stand.scripts.values()), LIMIT_S), "nothing met the fault"


def joined(chunks: list[Any], shape: str) -> list[Any]:
    """Put events together as a client does: one too long for a chunk comes in several."""
    return ["".join(chunks)] if shape == "openai" else chunks


def complaint(status: dict[str, Any]) -> str:
    """Return what the sender reads: the job's error, or the last thing of an OpenAI answer."""
    if status["status"] == "FAILED":
        return status["error"]
    *_, last, done = [frame for chunk in status["output"] for frame in chunk.split("\n\n") if frame]
    assert done == "data: [DONE]"
    return json.loads(last.removeprefix("data: "))["error"]["message"]


# --- Faults that take more than an answer


def test_a_job_delivered_again_while_it_runs_or_after_its_end_ends_once(stand: Stand, text_of: TextOf) -> None:
    stand.fake.turn(tokens_per_s=20)
    job_id = stand.queue.submit(STREAM)
    next(stand.queue.stream(job_id, LIMIT_S))
    stand.queue.deliver_again(job_id)
    assert text_of(stand.final(job_id)["output"]) == TEXT
    assert text_of(list(stand.queue.stream(job_id, LIMIT_S))) == TEXT
    assert len(stand.queue.record.dones(job_id)) == 1
    stand.queue.deliver_again(job_id)
    stand.queue.record.wait_for(lambda record: len(record.dones(job_id)) == 2, LIMIT_S)
    assert text_of(stand.final(job_id)["output"]) == TEXT


def test_a_job_stopped_in_the_queue_before_its_first_token_or_in_the_middle_gets_no_answer(stand: Stand) -> None:
    stand.fake.turn(tokens=400, tokens_per_s=20)
    before = stand.fake.stats()["cancelled"]
    streaming = stand.queue.submit(STREAM)
    next(stand.queue.stream(streaming, LIMIT_S))
    stand.fake.turn(first_token_delay_s=30)
    early = stand.queue.submit(STREAM)
    stand.worker.wait_event("job.opened", LIMIT_S, job_id=early)
    queued = stand.queue.submit(STREAM)
    for job_id in (queued, early, streaming):
        stand.queue.cancel(job_id)
        assert stand.final(job_id)["status"] == "CANCELLED"
    for job_id in (early, streaming):
        stand.worker.wait_event("job.cancelled", LIMIT_S, job_id=job_id)
    assert wait_for(lambda: stand.fake.stats()["cancelled"] == before + 2, LIMIT_S), "the server goes on generating"
    assert [stand.queue.record.dones(job_id) for job_id in (queued, early, streaming)] == [[], [], []]


def test_a_job_whose_pings_are_lost_for_too_long_still_ends_once(stand: Stand, text_of: TextOf) -> None:
    stand.queue.faults.ping.always(RESET)
    stand.fake.turn(tokens=90, tokens_per_s=20)
    job_id = stand.queue.submit(STREAM)
    status = stand.final(job_id, attempts=3)
    # The platform gave it to another worker, and there was none but the one that runs it already.
    assert status["retries"] >= 1
    assert (status["status"], len(text_of(status["output"])) > len(TEXT)) == ("COMPLETED", True)
    assert len(stand.queue.record.dones(job_id)) == 1


# --- Faults that end a worker: the next one does what is left


Ends = Callable[[LocalQueue, WorkerProcess], None]


def terminate(_: LocalQueue, worker: WorkerProcess) -> None:
    worker.signal(signal.SIGTERM)


def kill(_: LocalQueue, worker: WorkerProcess) -> None:
    worker.signal(signal.SIGKILL)


def kill_server(_: LocalQueue, worker: WorkerProcess) -> None:
    os.kill(worker.wait_event("server.spawned", LIMIT_S)["pid"], signal.SIGKILL)


def stop_listening(queue: LocalQueue, worker: WorkerProcess) -> None:
    """The platform takes no result any more, and the worker is told to go."""
    queue.faults.done.always(Answer(503))
    worker.wait_event("result.retried", LIMIT_S)
    worker.signal(signal.SIGTERM)


SLOW = {"FAKE_TOKENS_PER_S": "10"}
ENDINGS: dict[str, tuple[Ends, dict[str, str], str]] = {
    "sigterm-idle": (terminate, {}, ""),
    "sigterm-mid-job": (terminate, SLOW, ""),
    "sigterm-longer-than-the-drain": (terminate, {"FAKE_TOKENS_PER_S": "2", "WORKER_DRAIN_TIMEOUT_S": "0.3"}, ""),
    "sigterm-while-no-result-is-taken": (stop_listening, {"WORKER_DRAIN_TIMEOUT_S": "1"}, ""),
    "worker-killed-mid-job": (kill, SLOW, ""),
    "server-killed-mid-job": (kill_server, SLOW, LOST),
    "server-dies-by-itself-mid-job": (lambda *_: None, {**SLOW, "FAKE_DIE_AT_TOKEN": "4"}, LOST),
    "server-killed-idle": (kill_server, {}, LOST),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_what_a_worker_leaves_the_next_one_does(workers: Workers, text_of: TextOf, name: str) -> None:
    end, settings, error = ENDINGS[name]
    with LocalQueue(limits=LIMITS) as queue:
        first = workers.start(queue, worker_id="first", MAX_CONCURRENCY="3", FAKE_TEXT=TEXT, **settings)
        first.wait_event("loop.started", LIMIT_S)
        ids = []
        if not name.endswith("idle"):
            ids = [queue.submit(STREAM) for _ in range(2)]
            queue.record.wait_for(lambda record: all(record.chunks(job_id) for job_id in ids), LIMIT_S)
        end(queue, first)
        # Some meet the end, some come after it.
        ids.append(queue.submit(JOBS["whole"]))
        first.wait(LIMIT_S)
        queue.faults.done.clear()
        ids.append(queue.submit(STREAM))
        second = workers.start(queue, worker_id="second", FAKE_TEXT=TEXT)
        for job_id in ids:
            status = queue.wait(job_id, LIMIT_S)
            states = [move.state for move in queue.record.history(job_id)]
            assert [state for state in states if state.is_final] == [states[-1]], states
            if status["status"] == "FAILED":
                assert error, status
                assert error in status["error"]
            else:
                assert text_of(status["output"]) == TEXT
        check_undelivered(first, expected=end is stop_listening)
        assert second.stop() == 0


def check_undelivered(worker: WorkerProcess, *, expected: bool) -> None:
    """What the platform did not take was written out once, whole, and not called finished."""
    lost = [record for record in worker.records if record["event"] == "result.undelivered"]
    assert bool(lost) == expected
    ids = [record["job_id"] for record in lost]
    assert len(ids) == len(set(ids))
    assert all(json.loads(record["body"])["output"] for record in lost)
    ended = {r["job_id"] for r in worker.records if r["event"] in {"job.finished", "job.cancelled"}}
    assert not ended & set(ids)
