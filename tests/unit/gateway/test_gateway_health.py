from __future__ import annotations

from worker.gateway.health import Health


def test_a_worker_boots_is_resident_and_stops() -> None:
    health = Health(lambda: False)
    assert health.status == 204
    health.become_resident()
    assert health.status == 200
    health.stop()
    assert health.status == 503


def test_without_its_server_a_worker_is_of_no_use_whatever_it_was() -> None:
    gone: list[int] = []
    health = Health(lambda: bool(gone))
    health.become_resident()
    assert health.status == 200
    gone.append(1)
    assert health.status == 503
    assert Health(lambda: True).status == 503


def test_a_worker_that_was_told_to_stop_while_booting_does_not_become_healthy() -> None:
    health = Health(lambda: False)
    health.stop()
    health.become_resident()
    assert health.status == 503
