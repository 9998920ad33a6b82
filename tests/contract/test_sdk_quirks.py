"""Every defect of the SDK that worker/adapter corrects: first on the SDK itself, then with the correction.

A test that turns red at its first half says that the SDK has been mended and the correction can go.
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
from typing import TYPE_CHECKING

import psutil
import pytest

from worker.local.process import ROOT, WorkerProcess, wait_for
from worker.local.queue import RESET, Answer, Limits, LocalQueue

if TYPE_CHECKING:
    from tests.conftest import StartWorker

LIMIT_S = 60.0
HOLD_S = 3.0
GARBAGE = Answer(200, "<html>not json</html>")
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
OPENAI = {"openai_route": "/v1/chat/completions", "openai_input": {"messages": []}}

RunSdk = Callable[..., AbstractContextManager[WorkerProcess]]


@pytest.fixture
def queue() -> Iterator[LocalQueue]:
    """Polls are held longer than any test waits between two events, and shorter than it waits for an end."""
    with LocalQueue(limits=Limits(take_hold_s=HOLD_S, stop_hold_s=HOLD_S, ping_interval_s=1.0)) as running:
        yield running


@pytest.fixture
def run_sdk(queue: LocalQueue, mark: str) -> RunSdk:
    """Run the SDK's own loop, worker id `sdk`, with a handler that does what its input says."""

    @contextlib.contextmanager
    def run(handler: str = "answer", *, concurrency: int = 1) -> Iterator[WorkerProcess]:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": os.devnull,
            "TEST_PROCESS_MARK": mark,
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
            "RUNPOD_SKIP_GPU_CHECK": "true",
            "SDK_WORKER_CONCURRENCY": str(concurrency),
            "SDK_WORKER_AGGREGATE": "0",
            **queue.worker_env("sdk"),
        }
        command = (sys.executable, str(ROOT / "tests" / "fakes" / "sdk_worker.py"), handler)
        with WorkerProcess(environ, command=command) as worker:
            wait_called(queue, worker, "sdk")
            yield worker
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)

    return run


@pytest.fixture
def start_ours(queue: LocalQueue, start_worker: StartWorker) -> StartWorker:
    """Start our worker, worker id `ours`."""

    def start(**settings: str) -> WorkerProcess:
        worker = start_worker(worker_id="ours", **settings)
        wait_called(queue, worker, "ours")
        return worker

    return start


def takes(queue: LocalQueue, worker_id: str) -> list[float]:
    return [call.at_s for call in queue.record.takes() if call.worker_id == worker_id]


def wait_called(queue: LocalQueue, worker: WorkerProcess, worker_id: str) -> None:
    """Wait until a worker asks for jobs and pings."""

    def called() -> bool:
        assert worker.process.poll() is None, worker.tail()
        return bool(takes(queue, worker_id)) and any(call.worker_id == worker_id for call in queue.record.pings())

    queue.record.wait_for(lambda _: called(), LIMIT_S)


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


def test_a_job_that_meets_a_stopping_idle_worker_is_lost(
    queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker
) -> None:
    with run_sdk() as sdk:
        sdk.signal(signal.SIGTERM)
        time.sleep(0.3)  # nothing tells that the signal has been handled; the poll is held for seconds
        lost = queue.submit({"result": 1})
        assert sdk.wait(LIMIT_S) == 0
    assert queue.status(lost)["status"] == "IN_PROGRESS"
    assert queue.record.dones(lost) == []

    ours = start_ours()
    ours.signal(signal.SIGTERM)
    time.sleep(0.3)
    kept = queue.submit(CHAT)
    assert ours.wait(LIMIT_S) == 0
    assert queue.status(kept)["status"] in {"IN_QUEUE", "COMPLETED"}


def test_an_idle_worker_ends_only_with_its_polls(queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker) -> None:
    def end_s(worker: WorkerProcess) -> float:
        began = time.monotonic()
        assert worker.stop(LIMIT_S) == 0
        return time.monotonic() - began

    with run_sdk() as sdk:
        theirs_s = end_s(sdk)
    assert theirs_s > HOLD_S / 2
    assert end_s(start_ours()) < theirs_s


@pytest.mark.parametrize("answer", [Answer(429), RESET], ids=["429", "reset"])
def test_a_result_is_dropped_at_the_first_failure(
    queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker, answer: Answer
) -> None:
    queue.faults.done.add(answer)
    with run_sdk():
        dropped, followed = (queue.submit({"result": n}) for n in range(2))
        assert queue.wait(followed, LIMIT_S)["status"] == "COMPLETED"
        assert queue.status(dropped)["status"] == "IN_PROGRESS"
        assert len(queue.record.dones(dropped)) == 1

    start_ours()
    queue.faults.done.add(answer)
    kept = queue.submit(CHAT)
    assert queue.wait(kept, LIMIT_S)["status"] == "COMPLETED"
    assert len(queue.record.dones(kept)) == 2


def test_a_slot_stays_empty_for_a_second_after_every_job(
    queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker
) -> None:
    def gaps(job_ids: list[str]) -> list[float]:
        assert queue.wait(job_ids[-1], LIMIT_S)["status"] == "COMPLETED"
        done = [queue.record.dones(job_id)[-1].at_s for job_id in job_ids]
        asked = takes(queue, queue.status(job_ids[0])["workerId"])
        return [min(at for at in asked if at > end) - end for end in done[:-1]]

    with run_sdk():
        theirs = gaps([queue.submit({"result": n}) for n in range(3)])
    start_ours()
    mine = gaps([queue.submit(CHAT) for _ in range(3)])
    assert min(theirs) > 0.5
    assert max(mine) < min(theirs)


def test_the_ping_process_outlives_a_killed_worker(queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker) -> None:
    def kill(worker: WorkerProcess) -> psutil.Process:
        """Kill a worker and return its ping process: the child that is a fork of itself."""
        parent = psutil.Process(worker.process.pid)
        (child,) = [child for child in parent.children() if child.cmdline() == parent.cmdline()]
        worker.process.kill()
        worker.process.wait()
        return child

    with run_sdk() as sdk:
        orphan = kill(sdk)
        before = len(queue.record.pings())
        queue.record.wait_for(lambda record: len(record.pings()) > before, LIMIT_S)
        assert orphan.is_running()

    child = kill(start_ours())
    assert wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, LIMIT_S)


def test_errors_reach_the_client_as_python(queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker) -> None:
    with run_sdk("stream"):
        failed = queue.wait(queue.submit({"yields": [{"error": {"message": "no", "code": None}}]}), LIMIT_S)
        raised = queue.wait(queue.submit({"yields": 5}), LIMIT_S)
    assert failed["error"] == "{'message': 'no', 'code': None}"
    assert "Traceback (most recent call last)" in raised["error"]

    start_ours()
    failed = queue.wait(queue.submit(OPENAI), LIMIT_S)
    raised = queue.wait(queue.submit({"yields": 5}), LIMIT_S)
    assert json.loads(failed["output"][0])["error"]["code"]
    assert raised["error"] == "unknown field 'yields'. See the README for the three shapes of a job"


def test_bad_answers_are_asked_for_again_without_a_pause(
    queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker
) -> None:
    def asked_in_a_second(worker_id: str) -> int:
        before = len(takes(queue, worker_id))
        time.sleep(1.0)
        return len(takes(queue, worker_id)) - before

    queue.faults.take.always(GARBAGE)
    with run_sdk():
        theirs = asked_in_a_second("sdk")
    start_ours()
    mine = asked_in_a_second("ours")
    queue.faults.take.always(None)
    assert theirs > 50
    assert mine < 10
    assert queue.wait(queue.submit(CHAT), LIMIT_S)["status"] == "COMPLETED"


def test_a_job_without_an_id_ends_the_worker(queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker) -> None:
    broken = Answer(200, json.dumps([{"input": {}}]))
    with run_sdk(concurrency=2) as sdk:
        queue.faults.take.add(broken)
        assert sdk.wait(LIMIT_S) != 0

    ours = start_ours(MAX_CONCURRENCY="2")
    queue.faults.take.add(broken)
    assert queue.wait(queue.submit(CHAT), LIMIT_S)["status"] == "COMPLETED"
    assert ours.process.poll() is None


def test_a_job_delivered_twice_runs_twice(queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker) -> None:
    def deliver_twice(job_id: str) -> None:
        queue.record.wait_for(lambda record: record.takes(job_id), LIMIT_S)
        queue.deliver_again(job_id)
        queue.record.wait_for(lambda record: len(record.takes(job_id)) == 2, LIMIT_S)

    with run_sdk(concurrency=2):
        twice = queue.submit({"result": 1, "gap_s": 1.5})
        deliver_twice(twice)
        queue.record.wait_for(lambda record: len(record.dones(twice)) == 2, LIMIT_S)

    ours = start_ours(MAX_CONCURRENCY="2", FAKE_FIRST_TOKEN_DELAY_S="1.5")
    once = queue.submit(CHAT)
    deliver_twice(once)
    assert ours.stop(LIMIT_S) == 0  # with nothing left running
    assert len(queue.record.dones(once)) == 1


def test_half_a_character_keeps_a_result_from_its_client(
    queue: LocalQueue, run_sdk: RunSdk, start_ours: StartWorker
) -> None:
    with run_sdk():
        hanging, followed = queue.submit({"result": "\ud83e"}), queue.submit({"result": 1})
        assert queue.wait(followed, LIMIT_S)["status"] == "COMPLETED"
        assert queue.record.dones(hanging) == []

    start_ours()
    assert "not found" in queue.wait(queue.submit({**CHAT, "model": "\ud83e"}), LIMIT_S)["error"]
