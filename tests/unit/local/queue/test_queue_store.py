from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from worker.local.queue import JobUnknown, Refused, State

if TYPE_CHECKING:
    from tests.fakes.queue_peers import Clock, Submit
    from worker.local.queue import Record
    from worker.local.queue.job import Job
    from worker.local.queue.store import JobStore


def ids(jobs: list[Job]) -> list[str]:
    return [job.job_id for job in jobs]


def states(record: Record, job: Job) -> list[State]:
    return [move.state for move in record.history(job.job_id)]


def test_a_job_goes_from_queue_through_a_worker_to_completed(
    store: JobStore, submit: Submit, clock: Clock, record: Record
) -> None:
    job = submit({"n": 1})
    clock.pass_s(1.5)
    assert ids(store.take("w1", 1)) == [job.job_id]
    clock.pass_s(0.25)
    store.finish(job.job_id, {"output": {"m": 2}})

    clock.pass_s(10)
    assert store.status(job) == {
        "id": job.job_id,
        "status": "COMPLETED",
        "output": {"m": 2},
        "delayTime": 1500,
        "executionTime": 250,
        "workerId": "w1",
    }
    assert states(record, job) == [State.IN_QUEUE, State.IN_PROGRESS, State.COMPLETED]
    assert [move.at_s for move in record.history(job.job_id)] == [1000.0, 1001.5, 1001.75]


def test_jobs_are_handed_out_oldest_first_and_low_priority_last(store: JobStore, submit: Submit, clock: Clock) -> None:
    low = submit(low_priority=True)
    clock.pass_s(1)
    old = submit()
    clock.pass_s(1)
    new = submit()
    assert ids(store.take("w1", 2)) == [old.job_id, new.job_id]
    assert ids(store.take("w1", 2)) == [low.job_id]
    assert store.take("w1", 2) == []


def test_each_job_goes_to_one_worker_only(store: JobStore, submit: Submit) -> None:
    jobs = [submit() for _ in range(5)]
    first, second = store.take("w1", 3), store.take("w2", 3)
    assert sorted(ids(first + second)) == sorted(ids(jobs))
    assert {job.worker_id for job in first} == {"w1"}
    assert {job.worker_id for job in second} == {"w2"}


@pytest.mark.parametrize(
    ("body", "state", "result"),
    [
        ({"output": [1]}, "COMPLETED", {"output": [1]}),
        ({}, "COMPLETED", {}),
        ({"output": None}, "COMPLETED", {"output": None}),
        ({"error": "bad"}, "FAILED", {"error": "bad"}),
        ({"error": {"code": 1}}, "FAILED", {"error": {"code": 1}}),
        ({"output": 1, "error": "bad", "stopPod": True}, "FAILED", {"output": 1, "error": "bad"}),
    ],
)
def test_the_posted_body_decides_how_a_job_ends(
    store: JobStore, submit: Submit, body: dict[str, Any], state: str, result: dict[str, Any]
) -> None:
    job = submit()
    store.take("w1", 1)
    store.finish(job.job_id, body)
    status = store.status(job)
    assert status["status"] == state
    assert {key: status[key] for key in ("output", "error") if key in status} == result


def test_only_the_first_result_counts(store: JobStore, submit: Submit, record: Record) -> None:
    job = submit()
    store.take("w1", 1)
    store.finish(job.job_id, {"output": "first"})
    store.finish(job.job_id, {"error": "second"})
    store.progress(job.job_id, "late progress")
    store.append(job.job_id, ["late chunk"])
    assert store.status(job)["output"] == "first"
    assert job.state is State.COMPLETED
    assert job.chunks == []
    assert states(record, job).count(State.COMPLETED) == 1


def test_progress_shows_as_output_until_the_result_replaces_it(store: JobStore, submit: Submit) -> None:
    job = submit()
    store.take("w1", 1)
    store.progress(job.job_id, "half")
    assert store.status(job)["status"] == "IN_PROGRESS"
    assert store.status(job)["output"] == "half"
    store.finish(job.job_id, {})
    assert "output" not in store.status(job)


def test_execution_time_grows_while_a_job_runs(store: JobStore, submit: Submit, clock: Clock) -> None:
    job = submit()
    assert "executionTime" not in store.status(job)
    store.take("w1", 1)
    clock.pass_s(2)
    assert store.status(job)["executionTime"] == 2000


def test_cancelling_a_queued_job_tells_no_worker(store: JobStore, submit: Submit) -> None:
    job = submit()
    assert store.cancel(job.job_id).state is State.CANCELLED
    assert store.take("w1", 1) == []
    assert store.workers.take_stops("w1") == []


def test_cancelling_a_running_job_tells_its_worker_once(store: JobStore, submit: Submit) -> None:
    job = submit()
    store.take("w1", 1)
    store.cancel(job.job_id)
    store.cancel(job.job_id)
    assert store.workers.take_stops("w2") == []
    assert store.workers.take_stops("w1") == [job.job_id]
    assert store.workers.take_stops("w1") == []
    store.finish(job.job_id, {"output": "too late"})
    assert job.state is State.CANCELLED
    assert "output" not in store.status(job)


def test_cancelling_a_completed_job_changes_nothing(store: JobStore, submit: Submit) -> None:
    job = submit()
    store.take("w1", 1)
    store.finish(job.job_id, {"output": 1})
    assert store.cancel(job.job_id).state is State.COMPLETED


def test_a_job_that_runs_too_long_times_out_and_is_stopped(store: JobStore, submit: Submit, clock: Clock) -> None:
    job = submit(execution_timeout_s=30)
    clock.pass_s(100)
    store.sweep()
    assert job.state is State.IN_QUEUE, "waiting is not running"
    store.take("w1", 1)
    clock.pass_s(29)
    store.ping("w1", [job.job_id])
    store.sweep()
    assert job.state is State.IN_PROGRESS
    clock.pass_s(2)
    store.sweep()
    assert job.state is State.TIMED_OUT
    assert "executionTimeout" in store.status(job)["error"]
    assert store.workers.take_stops("w1") == [job.job_id]


@pytest.mark.parametrize("take", [False, True])
def test_a_job_vanishes_when_its_time_to_live_is_over(
    store: JobStore, submit: Submit, clock: Clock, *, take: bool
) -> None:
    job = submit(ttl_s=20)
    if take:
        store.take("w1", 1)
    clock.pass_s(20)
    store.sweep()
    assert store.get(job.job_id) is job
    clock.pass_s(0.1)
    store.sweep()
    with pytest.raises(JobUnknown, match=job.job_id):
        store.get(job.job_id)
    assert store.workers.take_stops("w1") == ([job.job_id] if take else [])


def test_a_result_is_kept_for_its_retention_after_the_end(store: JobStore, submit: Submit, clock: Clock) -> None:
    job = submit(retention_s=60, execution_timeout_s=500, ttl_s=900)
    store.take("w1", 1)
    clock.pass_s(200)
    store.finish(job.job_id, {"output": 1})
    clock.pass_s(60)
    store.sweep()
    assert store.status(job)["output"] == 1
    clock.pass_s(0.1)
    store.sweep()
    with pytest.raises(JobUnknown):
        store.get(job.job_id)


def test_a_client_can_move_the_end_of_the_time_to_live(store: JobStore, submit: Submit, clock: Clock) -> None:
    job = submit(ttl_s=20)
    store.keep(job.job_id, 100)
    clock.pass_s(90)
    store.sweep()
    assert store.get(job.job_id) is job
    clock.pass_s(11)
    store.sweep()
    with pytest.raises(JobUnknown):
        store.get(job.job_id)


def test_jobs_of_a_silent_worker_are_queued_again_and_come_first(
    store: JobStore, submit: Submit, clock: Clock, record: Record
) -> None:
    lost = submit("lost")
    store.take("w1", 1)
    clock.pass_s(1)
    submit("newer")
    store.ping("w2", [])
    clock.pass_s(29.5)
    store.sweep()
    assert lost.state is State.IN_QUEUE
    assert states(record, lost) == [State.IN_QUEUE, State.IN_PROGRESS, State.IN_QUEUE]
    assert store.take("w2", 1) == [lost]
    assert store.status(lost)["retries"] == 1
    assert store.status(lost)["workerId"] == "w2"
    assert store.health()["jobs"]["retried"] == 1


def test_pings_keep_a_worker_and_its_jobs(store: JobStore, submit: Submit, clock: Clock) -> None:
    job = submit(execution_timeout_s=1000)
    store.take("w1", 1)
    for _ in range(10):
        clock.pass_s(20)
        store.ping("w1", [job.job_id])
        store.sweep()
    assert job.state is State.IN_PROGRESS
    assert job.retries == 0


def test_a_job_its_worker_no_longer_names_is_lost(store: JobStore, submit: Submit, clock: Clock) -> None:
    job = submit()
    store.take("w1", 1)
    for _ in range(4):
        clock.pass_s(10)
        store.ping("w1", [])
        store.ping("w2", [job.job_id, "nobody"])
    store.sweep()
    assert job.state is State.IN_QUEUE, "neither a restarted worker nor another one keeps it"
    assert store.health()["workers"]["idle"] == 2


def test_asking_for_jobs_is_no_sign_of_life(store: JobStore, submit: Submit, clock: Clock) -> None:
    job = submit()
    store.take("w1", 1)
    for _ in range(4):
        clock.pass_s(10)
        store.take("w1", 1)
    store.sweep()
    assert job.state is State.IN_QUEUE


def test_a_job_that_loses_worker_after_worker_fails(
    store: JobStore, submit: Submit, clock: Clock, record: Record
) -> None:
    job = submit()
    for _ in range(3):
        assert store.take("w1", 1) == [job]
        clock.pass_s(31)
        store.sweep()
    assert job.state is State.FAILED
    assert "2 retries" in store.status(job)["error"]
    assert states(record, job).count(State.IN_PROGRESS) == 3


def test_a_result_from_a_worker_given_up_too_early_still_counts(store: JobStore, submit: Submit, clock: Clock) -> None:
    job = submit()
    store.take("w1", 1)
    clock.pass_s(31)
    store.sweep()
    assert job.state is State.IN_QUEUE
    store.finish(job.job_id, {"output": "late but right"})
    assert store.status(job)["output"] == "late but right"
    assert store.take("w2", 1) == []


def test_an_answer_that_did_not_arrive_is_undone_without_counting_as_a_retry(
    store: JobStore, submit: Submit, clock: Clock
) -> None:
    job = submit()
    clock.pass_s(1)
    taken = store.take("w1", 1)
    store.give_back(taken)
    assert job.state is State.IN_QUEUE
    clock.pass_s(1)
    store.take("w2", 1)
    status = store.status(job)
    assert status["delayTime"] == 2000
    assert "retries" not in status


def test_undoing_a_second_delivery_of_a_finished_job_leaves_it_finished(store: JobStore, submit: Submit) -> None:
    job = submit()
    store.take("w1", 1)
    store.finish(job.job_id, {"output": 1})
    store.deliver_again(job.job_id)
    store.give_back(store.take("w2", 1))
    assert job.state is State.COMPLETED


def test_a_second_delivery_hands_out_a_running_job_once_more(store: JobStore, submit: Submit) -> None:
    job, other = submit(), submit()
    store.take("w1", 1)
    store.deliver_again(job.job_id)
    assert store.take("w2", 5) == [job, other]
    assert job.worker_id == "w1"
    assert store.take("w2", 5) == []


def test_a_second_delivery_of_a_queued_job_is_its_first(store: JobStore, submit: Submit) -> None:
    job = submit()
    store.deliver_again(job.job_id)
    assert store.take("w1", 5) == [job]
    assert job.state is State.IN_PROGRESS


@pytest.mark.parametrize("body", [{"error": "x"}, None])
def test_retry_forgets_the_outcome_and_keeps_id_and_input(
    store: JobStore, submit: Submit, clock: Clock, body: dict[str, Any] | None
) -> None:
    job = submit({"n": 1})
    store.take("w1", 1)
    if body is None:
        clock.pass_s(61)
        store.ping("w1", [job.job_id])
        store.sweep()
    else:
        store.finish(job.job_id, body)
    assert store.retry(job.job_id) is job
    assert store.status(job) == {"id": job.job_id, "status": "IN_QUEUE"}
    assert store.take("w1", 1)[0].for_worker() == {"id": job.job_id, "input": {"n": 1}}


def test_only_failed_and_timed_out_jobs_can_be_retried(store: JobStore, submit: Submit) -> None:
    job = submit()
    with pytest.raises(Refused, match="IN_QUEUE"):
        store.retry(job.job_id)
    store.take("w1", 1)
    store.finish(job.job_id, {})
    with pytest.raises(Refused, match="COMPLETED"):
        store.retry(job.job_id)


def test_purge_forgets_waiting_jobs_only(store: JobStore, submit: Submit) -> None:
    running = submit()
    store.take("w1", 1)
    waiting = [submit(), submit()]
    assert store.purge() == 2
    assert store.get(running.job_id) is running
    for job in waiting:
        with pytest.raises(JobUnknown):
            store.get(job.job_id)
    assert store.purge() == 0


def test_health_counts_jobs_by_state_and_workers_by_what_they_do(store: JobStore, submit: Submit) -> None:
    for body in ({}, {"error": "x"}):
        submit()
        store.finish(store.take("w1", 1)[0].job_id, body)
    submit()
    store.take("w1", 1)
    submit()
    store.ping("w2", [])
    store.ping("w3", [], healthy=False)
    assert store.health() == {
        "jobs": {"completed": 1, "failed": 1, "inProgress": 1, "inQueue": 1, "retried": 0},
        "workers": {"idle": 1, "running": 1, "unhealthy": 1},
    }


def test_every_final_state_is_announced_once(store: JobStore, submit: Submit, clock: Clock) -> None:
    announced = []
    store.on_final = lambda job: announced.append((job.order.job_input, job.state))
    submit("done")
    submit("cancelled")
    submit("slow", execution_timeout_s=5)
    done, cancelled, _ = store.take("w1", 3)
    store.finish(done.job_id, {})
    store.finish(done.job_id, {})
    store.cancel(cancelled.job_id)
    clock.pass_s(6)
    store.sweep()
    store.sweep()
    assert announced == [
        ("done", State.COMPLETED),
        ("cancelled", State.CANCELLED),
        ("slow", State.TIMED_OUT),
    ]


@pytest.mark.parametrize("operation", ["get", "cancel", "retry", "deliver_again"])
def test_unknown_jobs_are_refused(store: JobStore, operation: str) -> None:
    with pytest.raises(JobUnknown, match="nobody"):
        getattr(store, operation)("nobody")


def test_the_history_outlives_the_job(store: JobStore, submit: Submit, record: Record, clock: Clock) -> None:
    job = submit(ttl_s=10)
    clock.pass_s(11)
    store.sweep()
    assert states(record, job) == [State.IN_QUEUE]


def test_ids_say_how_a_job_was_sent(submit: Submit) -> None:
    assert not submit(is_sync=False).job_id.startswith("sync-")
    assert submit(is_sync=True).job_id.startswith("sync-")
    assert submit().job_id.endswith("-u1")
