"""A gap between two beats is noticed once, by whichever clock shows it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import pulse
from worker.local.process import wait_for
from worker.pulse import Pulse, clocks


class Time:
    """Two clocks that go as a test says."""

    def __init__(self) -> None:
        self.wall, self.boot = 1000.0, 10.0

    def pass_(self, wall_s: float, boot_s: float | None = None) -> None:
        self.wall += wall_s
        self.boot += wall_s if boot_s is None else boot_s

    def __call__(self) -> tuple[float, float]:
        return self.wall, self.boot


def test_time_that_is_given_is_not_missed() -> None:
    time = Time()
    beating = Pulse(time, gap_s=5)
    for _ in range(100):
        time.pass_(1.2)
        beating.beat()
    assert beating.missed_s() == 0


@pytest.mark.parametrize(
    ("wall_s", "boot_s"),
    [(60, 60), (60, 0), (0, 60), (60, -5), (-60, 60)],
    ids=["both", "a snapshot restored", "a machine that slept", "booted meanwhile", "a wall clock set back"],
)
def test_a_gap_is_noticed_by_either_clock_and_told_once(wall_s: float, boot_s: float) -> None:
    time = Time()
    beating = Pulse(time, gap_s=5)
    time.pass_(wall_s, boot_s)
    beating.beat()
    time.pass_(1)
    beating.beat()
    assert beating.missed_s() == 60
    assert beating.missed_s() == 0


def test_who_asks_before_the_next_beat_is_told_too() -> None:
    time = Time()
    beating = Pulse(time, gap_s=5)
    time.pass_(30)
    assert beating.missed_s() == 30
    beating.beat()
    assert beating.missed_s() == 0


def test_the_longest_of_several_gaps_is_told() -> None:
    time = Time()
    beating = Pulse(time, gap_s=5)
    for gap_s in (10, 3600, 20):
        time.pass_(gap_s)
        beating.beat()
    assert beating.missed_s() == 3600


@given(st.lists(st.floats(-100, 5), max_size=20))
def test_nothing_up_to_the_limit_is_noticed(steps: list[float]) -> None:
    time = Time()
    beating = Pulse(time, gap_s=5.001)
    for step in steps:
        time.pass_(step)
        beating.beat()
    assert beating.missed_s() == 0


def test_the_clocks_of_this_machine_go_on() -> None:
    before = clocks()
    assert wait_for(lambda: all(now > then for then, now in zip(before, clocks(), strict=True)))


def test_it_beats_by_itself_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "BEAT_S", 0.01)
    time = Time()
    asked = threading.Event()
    seen = []

    def now() -> tuple[float, float]:
        seen.append(threading.current_thread().name)
        if seen.count("pulse") >= 3:
            asked.set()
        return time()

    beating = Pulse(now, gap_s=5)
    beating.start()
    assert asked.wait(30)
    beating.stop()
    assert wait_for(lambda: "pulse" not in {thread.name for thread in threading.enumerate()}, 30)
    beating.stop()
