from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from worker import events
from worker.events import SPANS, Event
from worker.metrics import Metrics

S = 1_000_000_000


def finished(job_id: str, prompt: int | None = 3, output: int | None = 5) -> Event:
    figures = {"prefill_ms": None, "decode_ms": None}
    return events.JobFinished(job_id, chunks=1, body_bytes=1, prompt_tokens=prompt, output_tokens=output, **figures)


def failed(job_id: str, status: int) -> Event:
    return events.JobFailed(job_id, code="x", status=status, message="m")


def figures(*timed: tuple[Event, float]) -> dict[str, float]:
    """Return each sample of what is told after these events, which happen at so many seconds."""
    metrics = Metrics()
    for event, at_s in timed:
        metrics.observe(event, int(at_s * S))
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values() if value): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_jobs_are_counted_by_how_they_ended() -> None:
    told = figures(
        *[(events.JobAccepted(f"{n}"), 1) for n in range(7)],
        (finished("0"), 2),
        (finished("1"), 2),
        (failed("2", 404), 2),
        (failed("3", 502), 2),
        (events.JobCancelled("4"), 2),
        (events.ResultUndelivered("6", "HTTP 500", "{}"), 2),
    )
    assert {name: value for name, value in told.items() if name.startswith("worker_jobs_total")} == {
        "worker_jobs_total finished": 2,
        "worker_jobs_total failed 404": 1,
        "worker_jobs_total failed 502": 1,
        "worker_jobs_total cancelled": 1,
        "worker_jobs_total undelivered": 1,
    }
    assert told["worker_jobs_running"] == 1
    assert told["worker_job_seconds_count"] == 6


def test_an_end_counts_once_and_only_for_a_job_that_began() -> None:
    told = figures(
        (events.JobAccepted("a"), 1), (failed("a", 500), 2), (failed("a", 502), 2), (events.JobCancelled("b"), 2)
    )
    assert sum(value for name, value in told.items() if name.startswith("worker_jobs_total")) == 1
    assert told["worker_jobs_running"] == 0


def test_tokens_are_the_servers() -> None:
    told = figures((events.JobAccepted("a"), 1), (finished("a"), 2), (finished("b", None, None), 2), (finished("c"), 2))
    assert (told["worker_tokens_total prompt"], told["worker_tokens_total output"]) == (6, 10)


def test_time_to_the_first_token_is_counted_from_the_acceptance() -> None:
    told = figures((events.JobAccepted("a"), 1), (events.JobTokenReceived("a"), 1.3), (events.JobTokenReceived("b"), 9))
    assert told["worker_ttft_seconds_count"] == 1
    assert told["worker_ttft_seconds_sum"] == pytest.approx(0.3)
    assert (told["worker_ttft_seconds_bucket 0.25"], told["worker_ttft_seconds_bucket 0.5"]) == (0, 1)


def test_what_the_slots_cannot_take_waits() -> None:
    accepted = [(events.JobAccepted(f"{n}"), 1.0) for n in range(5)]
    told = figures((events.LoopStarted(concurrency=2), 0), *accepted)
    assert (told["worker_slots"], told["worker_jobs_running"], told["worker_jobs_waiting"]) == (2, 5, 3)
    assert figures((events.LoopStarted(concurrency=8), 0), *accepted)["worker_jobs_waiting"] == 0


def test_each_part_of_the_boot_has_its_length() -> None:
    told = figures(
        (events.ContainerStarted(), 1),
        (events.WorkerStarted(pid=1, version="x"), 1.5),
        (events.ServerSpawned(pid=2, argv=[]), 2),
        (events.ServerAnswered(version="x"), 4),
        (events.LoadStarted(model="m"), 4),
        (events.LoadFinished(model="m", size_bytes=1, size_vram_bytes=1, context_length=1), 9),
        (events.LoadStarted(model="m"), 20),
    )
    spans = {name.split()[1]: value for name, value in told.items() if name.startswith("worker_boot_span_seconds")}
    assert spans == {"container": 0.5, "launch": 0.5, "server": 2, "load": 5}


def test_no_span_of_a_job_is_one_of_the_boot() -> None:
    job = [events.JobAccepted("a"), events.JobOpened("a", "/x", "m"), events.JobTokenReceived("a"), finished("a")]
    told = figures((events.LoopStarted(1), 0), *[(event, 1.0) for event in job])
    assert not [name for name in told if name.startswith("worker_boot_span_seconds")]
    assert {span.end for span in SPANS.values()} & {event.name for event in job}


def test_troubles_of_delivery_are_counted() -> None:
    told = figures(
        (events.ResultRetried("a", 1, "x"), 1),
        (events.ResultRetried("a", 2, "x"), 1),
        (events.ResultUndelivered("a", "x", "b"), 1),
    )
    assert (told["worker_results_retried_total"], told["worker_results_undelivered_total"]) == (2, 1)


def test_the_process_is_described_and_every_name_is_plain() -> None:
    told = figures()
    assert told["process_resident_memory_bytes"] > 1_000_000
    assert all(re.match(r"(worker|process)_[a-z_]+( |$)", name) for name in told)


def test_two_do_not_share_their_figures() -> None:
    assert figures((events.ResultRetried("a", 1, "x"), 1))["worker_results_retried_total"] == 1
    assert figures()["worker_results_retried_total"] == 0
