"""Calls that may hang: what they return, what they raise, and that nobody waits for them without end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from worker.bounded import Stalled, call

ROOT = Path(__file__).parents[2]
HANGING = """
import threading
from worker.bounded import Stalled, call
try:
    call(threading.Event().wait, 0.1, "the volume")
except Stalled as exc:
    print(exc)
"""


def test_the_result_comes_back_whatever_it_is() -> None:
    assert call(lambda: 7, 10, "it") == 7
    assert call(lambda: None, 10, "it") is None


def test_an_error_of_the_system_comes_back_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        call((tmp_path / "absent").stat, 10, "it")
    assert caught.value.filename == str(tmp_path / "absent")


def test_a_hanging_call_is_given_up_at_its_limit_and_named() -> None:
    release = threading.Event()
    began_s = time.monotonic()
    try:
        with pytest.raises(Stalled, match=r"^the volume: no answer within 0\.2 s$"):
            call(release.wait, 0.2, "the volume")
    finally:
        release.set()
    assert time.monotonic() - began_s >= 0.2


def test_giving_up_is_an_os_error_so_that_callers_handle_it_like_a_broken_disk() -> None:
    assert issubclass(Stalled, OSError)


def test_a_process_can_end_while_a_call_of_it_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "the volume: no answer within 0.1 s"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_nobody_expected_is_no_time_out() -> None:
    with pytest.raises(RuntimeError, match="the volume: failed unexpectedly"):
        call(lambda: 1 // 0, 30, "the volume")


def test_a_machine_without_room_for_a_thread_is_an_os_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="no thread could be started") as caught:
        call(lambda: 7, 10, "it")
    assert caught.value.filename == "bounded"
