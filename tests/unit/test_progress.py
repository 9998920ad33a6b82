from __future__ import annotations

import threading

import pytest

from worker import progress
from worker.progress import Halted, Meter, Progress


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """What is told, when every step is."""
    monkeypatch.setattr(progress, "REPORT_INTERVAL_S", 0.0)
    return []


def test_what_was_there_counts_as_done_but_not_for_the_rate(told: list[Progress]) -> None:
    meter = Meter(100, told.append, already_bytes=40)
    meter.advance(0)
    meter.reach(70)
    assert [(p.done_bytes, p.total_bytes) for p in told] == [(40, 100), (70, 100)]
    assert told[0].rate_bytes_per_s == 0.0
    assert told[1].rate_bytes_per_s > 0
    assert meter.done_bytes == 70


def test_bytes_may_be_lost_again(told: list[Progress]) -> None:
    meter = Meter(100, told.append, already_bytes=50)
    meter.reach(0)
    assert (told[0].done_bytes, told[0].rate_bytes_per_s) == (0, 0.0)


def test_little_is_told_of_many_steps() -> None:
    told: list[Progress] = []
    meter = Meter(1000, told.append)
    for _ in range(1000):
        meter.advance(1)
    assert len(told) <= 1
    assert meter.done_bytes == 1000


def test_nothing_is_lost_between_threads() -> None:
    meter = Meter(80_000)
    threads = [threading.Thread(target=lambda: [meter.advance(1) for _ in range(10_000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.done_bytes == 80_000


def test_a_step_can_be_stopped() -> None:
    def halt() -> None:
        if meter.done_bytes >= 2:
            raise Halted("enough")

    meter = Meter(10, halt=halt)
    meter.advance(1)
    meter.advance(1)
    with pytest.raises(Halted, match="enough"):
        meter.advance(1)
    assert meter.done_bytes == 2


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (Progress(50_000_000, 200_000_000, 25e6), " 25% of 200.0 MB (50.0 MB) at 25.0 MB/s, 6 s left"),
        (Progress(0, 1_500_000, 0.0), "  0% of 1.5 MB (0.0 MB) at 0.0 MB/s"),
        (Progress(0, 0, 0.0), "100% of 0.0 MB (0.0 MB) at 0.0 MB/s"),
    ],
)
def test_a_person_is_shown_the_figures(shown: Progress, text: str) -> None:
    assert str(shown) == text
