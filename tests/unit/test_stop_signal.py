from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from worker.local.process import ROOT

LISTEN = """
import os, signal, sys, threading, time
from worker.stop_signal import StopSignal

def say(*words):
    print(*words, flush=True)

done = threading.Event()

def on_stop(number):
    say(number.name, stop.received, threading.current_thread() is threading.main_thread())
    done.set()

stop = StopSignal(on_stop)
stop.listen()
say("listening", stop.received)
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Run LISTEN and then the given code in a process of its own; give it back once it listens."""
    started: list[subprocess.Popen[str]] = []

    def _start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", LISTEN + code],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "listening False\n"
        return process

    yield _start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_thread_learns_of_the_signal(start: Start, number: signal.Signals) -> None:
    process = start("done.wait()")
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == f"{number.name} True False\n"
    assert process.returncode == 0


def test_the_main_thread_is_not_interrupted(start: Start) -> None:
    code = """
rounds = 0
say("working")
while not done.is_set():
    for part in range(1000):
        try:
            rounds += 1
        except BaseException as exc:
            say("interrupted", exc)
say("unharmed")
"""
    process = start(code)
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "SIGTERM True False\nunharmed\n"


def test_only_the_first_signal_counts(start: Start) -> None:
    process = start("done.wait(); say('once'); sys.stdin.readline(); say('end')")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "SIGTERM True False\n"
    assert process.stdout.readline() == "once\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.communicate("go on\n", timeout=60)[0] == "end\n"


def test_other_signals_are_none(start: Start) -> None:
    process = start("""
heard = []
signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
say("set")
done.wait()
say(heard == [signal.SIGUSR1])
""")
    assert process.stdout.readline() == "set\n"
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "SIGTERM True False\nTrue\n"


def test_ignored_signals_have_no_effect(start: Start) -> None:
    process = start("stop.ignore(); say('ignoring'); sys.stdin.readline(); say(stop.received)")
    assert process.stdout.readline() == "ignoring\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.communicate("go on\n", timeout=60)[0] == "False\n"
    assert process.returncode == 0
