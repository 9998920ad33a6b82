from __future__ import annotations

import pytest

from worker.local.queue.workers import Workers


@pytest.fixture
def workers() -> Workers:
    return Workers(silence_s=30)


def test_a_worker_is_given_up_after_the_silence(workers: Workers) -> None:
    workers.meet("w1", 0)
    workers.ping("w2", 20, healthy=True)
    left = []
    for now_s in (30, 31, 50, 51):
        workers.give_up_silent(now_s)
        left.append(workers.counts(set())["idle"])
    assert left == [2, 1, 1, 0]


def test_meeting_a_known_worker_is_not_hearing_from_it(workers: Workers) -> None:
    workers.meet("w1", 0)
    workers.meet("w1", 29)
    workers.give_up_silent(31)
    assert workers.counts(set())["idle"] == 0


def test_a_worker_that_comes_back_is_a_worker_again(workers: Workers) -> None:
    workers.meet("w1", 0)
    workers.give_up_silent(31)
    workers.ping("w1", 40, healthy=True)
    workers.give_up_silent(70)
    assert workers.counts(set()) == {"idle": 1, "running": 0, "unhealthy": 0}


def test_stops_wait_for_their_worker_as_they_were_sent(workers: Workers) -> None:
    workers.stop("w1", "a", "a", "nobody")
    workers.stop("w1", "b")
    workers.stop("w2", "c")
    assert workers.take_stops("w1") == ["a", "a", "nobody", "b"]
    assert workers.take_stops("w1") == []
    assert workers.take_stops("w2") == ["c"]


def test_a_healthy_ping_clears_an_unhealthy_one(workers: Workers) -> None:
    workers.ping("w1", 0, healthy=False)
    assert workers.counts({"w1"}) == {"idle": 0, "running": 0, "unhealthy": 1}
    workers.ping("w1", 1, healthy=True)
    assert workers.counts({"w1", "a worker given up"}) == {"idle": 0, "running": 1, "unhealthy": 0}
