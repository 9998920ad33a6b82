"""Every defect of the SDK that worker/adapter corrects: first on the SDK itself, then with the correction.

A test that turns red in its first half says that the SDK has been mended and the correction can go.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from worker.local.process import ROOT, WorkerProcess, wait_for
from worker.local.queue import GARBAGE, RESET, Answer, Limits, LocalQueue

if TYPE_CHECKING:
    from tests.conftest import Marked, Workers

LIMIT_S = 60.0
HOLD_S = 3.0
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
WITHOUT_ID = Answer(200, json.dumps([{"input": {}}]))


@dataclass
class Side:
    """A queue of its own and the one worker it has."""

    queue: LocalQueue
    worker: WorkerProcess

    def takes(self) -> list[float]:
        return [call.at_s for call in self.queue.record.takes()]

    def run(self, job_input: dict[str, Any]) -> dict[str, Any]:
        return self.queue.wait(self.queue.submit(job_input), LIMIT_S)


@dataclass
class Pair:
    """The SDK alone and our worker."""

    theirs: Side
    ours: Side


Run = Callable[..., AbstractContextManager[Side]]


@contextlib.contextmanager
def _queue() -> Iterator[LocalQueue]:
    """Polls are held longer than any test waits between two events, and shorter than it waits for an end."""
    with LocalQueue(limits=Limits(take_hold_s=HOLD_S, stop_hold_s=HOLD_S, ping_interval_s=1.0)) as queue:
        yield queue


def _ready(side: Side) -> Side:
    """Wait until the worker asks for jobs and pings."""

    def called() -> bool:
        assert side.worker.process.poll() is None, side.worker.tail()
        return bool(side.takes() and side.queue.record.stops() and side.queue.record.pings())

    side.queue.record.wait_for(lambda _: called(), LIMIT_S)
    return side


@contextlib.contextmanager
def _run_sdk(marked: Marked, handler: str = "answer", *, concurrency: int = 1) -> Iterator[Side]:
    """Run the SDK's own loop with a handler that does what its input says."""
    with _queue() as queue:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": os.devnull,
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
            "RUNPOD_SKIP_GPU_CHECK": "true",
            "SDK_WORKER_CONCURRENCY": str(concurrency),
            "SDK_WORKER_AGGREGATE": "0",
            **marked.environ,
            **queue.worker_env("sdk"),
        }
        command = (sys.executable, str(ROOT / "tests" / "fakes" / "sdk_worker.py"), handler)
        with WorkerProcess(environ, command=command) as worker:
            try:
                yield _ready(Side(queue, worker))
            finally:
                # Its whole group: the ping process does not go with its parent.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _run_ours(workers: Workers, **settings: str) -> Iterator[Side]:
    with _queue() as queue:
        side = _ready(Side(queue, workers.start(queue, **settings)))
        yield side
        if side.worker.process.poll() is None:
            side.worker.stop()


@pytest.fixture
def run_sdk(marked: Marked) -> Run:
    return lambda *args, **settings: _run_sdk(marked, *args, **settings)


@pytest.fixture
def run_ours(workers: Workers) -> Run:
    return lambda **settings: _run_ours(workers, **settings)


@pytest.fixture(scope="module")
def narrow(module_workers: Workers) -> Iterator[Pair]:
    """One slot each; the SDK's handler returns its answer."""
    with _run_sdk(module_workers.marked) as theirs, _run_ours(module_workers) as ours:
        yield Pair(theirs, ours)


@pytest.fixture(scope="module")
def wide(module_workers: Workers) -> Iterator[Pair]:
    """Two slots each; the SDK's handler is a generator, and our server takes a second and a half for a token."""
    slow = {"MAX_CONCURRENCY": "2", "FAKE_FIRST_TOKEN_DELAY_S": "1.5"}
    with (
        _run_sdk(module_workers.marked, "stream", concurrency=2) as theirs,
        _run_ours(module_workers, **slow) as ours,
    ):
        yield Pair(theirs, ours)


def test_the_import_asks_for_the_cpu_and_for_ssh() -> None:
    code = """
import json, sys
started = []
sys.addaudithook(lambda event, args: started.append(event) if event == "subprocess.Popen" else None)
import runpod
print(json.dumps([started != [], "cpuinfo" in sys.modules, "paramiko" in sys.modules]))
"""
    environ = {"PATH": os.environ["PATH"], "HOME": os.devnull}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, True, True]
    # The correction is shown by tests/unit/adapter/test_sdk.py.


def test_a_stopping_idle_worker_waits_for_its_polls_and_loses_the_job_it_gets(run_sdk: Run, run_ours: Run) -> None:
    def end(side: Side) -> tuple[float, str]:
        """Stop the worker, queue a job meanwhile; return how long the end took and where the job is."""
        began = time.monotonic()
        side.worker.signal(signal.SIGTERM)
        time.sleep(0.3)  # nothing tells that the SDK has handled the signal; its polls are held for seconds
        job_id = side.queue.submit({"result": 1})
        assert side.worker.wait(LIMIT_S) == 0
        assert side.queue.record.dones(job_id) == []
        return time.monotonic() - began, side.queue.status(job_id)["status"]

    with run_sdk() as theirs:
        their_s, their_job = end(theirs)
    with run_ours() as ours:
        our_s, our_job = end(ours)
    assert their_job == "IN_PROGRESS"
    assert their_s > HOLD_S / 2
    assert our_job == "IN_QUEUE"
    assert our_s < their_s


def test_a_stop_signal_is_not_heard_once_the_worker_is_told_to_end(run_sdk: Run, run_ours: Run) -> None:
    def hears(side: Side, job_input: dict[str, Any], begun: str = "") -> bool:
        """Cancel a job while the worker waits for its end; return whether the worker asked for the signal."""
        job_id = side.queue.submit(job_input)
        side.queue.record.wait_for(lambda record: record.takes(job_id), LIMIT_S)
        if begun:
            # Taken from the queue is not yet here.
            side.worker.wait_event(begun, LIMIT_S)
        side.worker.signal(signal.SIGTERM)
        # The poll that is open now is still answered, or given up for another one.
        last = side.queue.record.stops()[-1]
        side.queue.record.wait_for(lambda record: last.answered is not None or record.stops()[-1] is not last, LIMIT_S)
        side.queue.cancel(job_id)
        assert side.worker.wait(LIMIT_S) == 0
        return bool(side.queue.record.stops(job_id))

    with run_sdk() as theirs:
        assert not hears(theirs, {"result": 1, "gap_s": HOLD_S + 3})
    with run_ours(FAKE_FIRST_TOKEN_DELAY_S="60") as ours:
        assert hears(ours, CHAT, "job.opened")
        assert ours.worker.wait_event("job.cancelled", LIMIT_S)


@pytest.mark.parametrize("answer", [Answer(429), RESET], ids=["429", "reset"])
def test_a_result_is_dropped_at_the_first_failure(narrow: Pair, answer: Answer) -> None:
    queue = narrow.theirs.queue
    queue.faults.done.add(answer)
    dropped, followed = (queue.submit({"result": n}) for n in range(2))
    assert queue.wait(followed, LIMIT_S)["status"] == "COMPLETED"
    assert queue.status(dropped)["status"] == "IN_PROGRESS"
    assert len(queue.record.dones(dropped)) == 1

    queue = narrow.ours.queue
    queue.faults.done.add(answer)
    kept = queue.submit(CHAT)
    assert queue.wait(kept, LIMIT_S)["status"] == "COMPLETED"
    assert len(queue.record.dones(kept)) == 2


def test_a_slot_stays_empty_for_a_second_after_every_job(narrow: Pair) -> None:
    def gaps(side: Side, job_input: dict[str, Any]) -> list[float]:
        job_ids = [side.queue.submit(job_input) for _ in range(3)]
        assert side.queue.wait(job_ids[-1], LIMIT_S)["status"] == "COMPLETED"
        ends = [side.queue.record.dones(job_id)[-1].at_s for job_id in job_ids[:-1]]
        return [min(at for at in side.takes() if at > end) - end for end in ends]

    theirs = gaps(narrow.theirs, {"result": 1})
    assert min(theirs) > 0.5
    assert max(gaps(narrow.ours, CHAT)) < min(theirs)


def test_bad_answers_are_asked_for_again_without_a_pause(narrow: Pair) -> None:
    def asked_in_a_second(side: Side) -> int:
        side.queue.faults.take.always(GARBAGE)
        held = len(side.takes())
        side.queue.record.wait_for(lambda _: len(side.takes()) > held, LIMIT_S)
        before = len(side.takes())
        time.sleep(1.0)
        side.queue.faults.take.always(None)
        return len(side.takes()) - before

    assert asked_in_a_second(narrow.theirs) > 50
    assert asked_in_a_second(narrow.ours) < 10
    assert narrow.ours.run(CHAT)["status"] == "COMPLETED"


def test_half_a_character_keeps_a_result_from_its_client(narrow: Pair) -> None:
    queue = narrow.theirs.queue
    hanging, followed = queue.submit({"result": "\ud83e"}), queue.submit({"result": 1})
    assert queue.wait(followed, LIMIT_S)["status"] == "COMPLETED"
    assert queue.record.dones(hanging) == []
    assert "not found" in narrow.ours.run({**CHAT, "model": "\ud83e"})["error"]


def test_errors_reach_the_client_as_python(wide: Pair) -> None:
    assert wide.theirs.run({"yields": [{"error": {"code": None}}]})["error"] == "{'code': None}"
    assert "Traceback (most recent call last)" in wide.theirs.run({"yields": 5})["error"]

    body = wide.ours.run({"openai_route": "/v1/chat/completions", "openai_input": {"messages": []}})["output"][0]
    assert json.loads(body)["error"]["message"]
    sentence = "unknown field 'yields'. See Jobs in the README for what a job may look like"
    assert wide.ours.run({"yields": 5})["error"] == sentence


def test_a_job_delivered_twice_runs_twice(wide: Pair) -> None:
    def deliver_twice(queue: LocalQueue, job_input: dict[str, Any]) -> str:
        job_id = queue.submit(job_input)
        queue.record.wait_for(lambda record: record.takes(job_id), LIMIT_S)
        queue.deliver_again(job_id)
        queue.record.wait_for(lambda record: len(record.takes(job_id)) == 2, LIMIT_S)
        return job_id

    twice = deliver_twice(wide.theirs.queue, {"yields": ["once"], "gap_s": 1.5})
    wide.theirs.queue.record.wait_for(lambda record: len(record.dones(twice)) == 2, LIMIT_S)

    once = deliver_twice(wide.ours.queue, CHAT)
    assert wide.ours.queue.wait(once, LIMIT_S)["status"] == "COMPLETED"
    # Both slots are free again: a second run would have ended before these two.
    later = [wide.ours.queue.submit(CHAT) for _ in range(2)]
    assert [wide.ours.queue.wait(job_id, LIMIT_S)["status"] for job_id in later] == ["COMPLETED"] * 2
    assert len(wide.ours.queue.record.dones(once)) == 1


def test_a_job_without_an_id_ends_the_worker(wide: Pair, run_sdk: Run) -> None:
    with run_sdk(concurrency=2) as theirs:
        theirs.queue.faults.take.add(WITHOUT_ID)
        assert theirs.worker.wait(LIMIT_S) != 0

    wide.ours.queue.faults.take.add(WITHOUT_ID)
    assert wide.ours.run(CHAT)["status"] == "COMPLETED"
    assert wide.ours.worker.process.poll() is None


def test_the_ping_process_outlives_a_killed_worker(run_sdk: Run, run_ours: Run) -> None:
    def kill(worker: WorkerProcess) -> psutil.Process:
        """Kill a worker and return its ping process: the child that is a fork of itself."""
        parent = psutil.Process(worker.process.pid)
        (child,) = [child for child in parent.children() if child.cmdline() == parent.cmdline()]
        worker.process.kill()
        worker.process.wait()
        return child

    with run_sdk() as theirs:
        orphan = kill(theirs.worker)
        before = len(theirs.queue.record.pings())
        theirs.queue.record.wait_for(lambda record: len(record.pings()) > before, LIMIT_S)
        assert orphan.is_running()

    with run_ours() as ours:
        child = kill(ours.worker)
        assert wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, LIMIT_S)
