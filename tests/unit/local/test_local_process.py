"""The end of a worker that does not want to end, or whose person does not want to wait."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import Marked
from worker.local import descendants
from worker.local import process as local_process
from worker.local.process import WorkerProcess, wait_for

# Says when it is told to stop, and goes on; so does what it has started, in a group of its own as a server is.
STUBBORN = """
import json, signal, subprocess, sys, time
def tell(name):
    print(json.dumps({"event": name, "at_ns": 1}), flush=True)
signal.signal(signal.SIGTERM, lambda *_: tell("told"))
if sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
tell("ready")
while True:
    time.sleep(60)
"""


@pytest.fixture
def stubborn(marked: Marked) -> WorkerProcess:
    return WorkerProcess({**os.environ, **marked.environ}, command=(sys.executable, "-c", STUBBORN, STUBBORN))


def both_are_there(worker: WorkerProcess) -> bool:
    return wait_for(lambda: sum(record["event"] == "ready" for record in worker.records) == 2, 60.0)


def run(stubborn: WorkerProcess, *, interrupted: bool) -> None:
    with stubborn as worker:
        assert both_are_there(worker)
        if interrupted:
            raise KeyboardInterrupt


def interrupt_when_told(worker: WorkerProcess) -> None:
    """Press Ctrl-C once the worker was asked to stop."""

    def press() -> None:
        wait_for(lambda: any(record["event"] == "told" for record in worker.records), 60.0)
        _thread.interrupt_main()

    threading.Thread(target=press, daemon=True).start()


def test_one_that_does_not_stop_is_ended_with_what_it_started(
    stubborn: WorkerProcess, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_process, "_PATIENCE_S", 0.5)
    run(stubborn, interrupted=False)
    assert stubborn.process.returncode == -9
    assert marked.are_gone(5.0)


def test_whoever_interrupts_does_not_wait_as_long(
    stubborn: WorkerProcess, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_process, "_INTERRUPTED_S", 0.5)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(stubborn, interrupted=True)
    assert time.monotonic() - began_s < local_process._PATIENCE_S
    assert marked.are_gone(5.0)


@pytest.mark.parametrize("interrupted", [False, True], ids=["at its end", "again"])
def test_an_interrupt_while_it_is_waited_for_ends_it_at_once(
    stubborn: WorkerProcess, marked: Marked, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool
) -> None:
    for limit in ("_PATIENCE_S", "_INTERRUPTED_S"):
        monkeypatch.setattr(local_process, limit, 600.0)
    interrupt_when_told(stubborn)
    with pytest.raises(KeyboardInterrupt):
        run(stubborn, interrupted=interrupted)
    assert stubborn.process.returncode == -9
    assert marked.are_gone(5.0)


def test_everything_below_a_process_is_found_and_ended_but_not_itself(marked: Marked) -> None:
    environ = {**os.environ, **marked.environ}
    with WorkerProcess(environ, command=(sys.executable, "-c", STUBBORN, STUBBORN)) as worker:
        assert both_are_there(worker)
        found = descendants.below(worker.process.pid)
        assert worker.process.pid not in found
        assert {*found, worker.process.pid} == {process.pid for process in marked.processes}
        assert worker.process.pid in descendants.below(os.getpid())
        descendants.end(worker.process.pid)
        assert wait_for(lambda: [process.pid for process in marked.processes] == [worker.process.pid])
        worker.process.kill()


def test_a_process_with_any_name_and_one_that_started_nothing_are_told_apart(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as started:
        assert started.pid in descendants.below(os.getpid())
        assert descendants.below(started.pid) == []
        started.kill()
