"""Work beside the main thread: its result, its failure, and an end that waits for nobody."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from worker.branch import branch
from worker.errors import ConfigInvalid
from worker.local.process import ROOT, wait_for

LIMIT_S = 30.0
LEAVER = """
import threading
from worker.branch import branch
branch("download", threading.Event().wait)
print("over")
"""


def test_it_runs_beside_its_caller_under_its_name_and_gives_its_result() -> None:
    go_on = threading.Event()

    def work() -> str:
        assert go_on.wait(LIMIT_S)
        return threading.current_thread().name

    future = branch("weights", work)
    assert not future.done()
    go_on.set()
    assert future.result(LIMIT_S) == "weights"


@pytest.mark.parametrize(
    "failure", [ConfigInvalid("three mistakes", "Correct them"), FileNotFoundError(2, "gone"), ImportError("runpod")]
)
def test_what_may_go_wrong_comes_out_where_the_result_would(failure: Exception) -> None:
    def work() -> None:
        raise failure

    with pytest.raises(type(failure)) as caught:
        branch("front", work).result(LIMIT_S)
    assert caught.value is failure


def test_what_must_not_go_wrong_is_reported_and_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: reported.append(told.exc_type))

    def work() -> int:
        return 1 // 0

    with pytest.raises(RuntimeError, match="judge: failed unexpectedly"):
        branch("judge", work).result(LIMIT_S)
    # The thread ends a moment after its result is there.
    assert wait_for(lambda: reported == [ZeroDivisionError], LIMIT_S)


def test_it_does_not_keep_a_process_alive() -> None:
    command = [sys.executable, "-c", LEAVER]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert (done.stdout, done.stderr) == ("over\n", "")
