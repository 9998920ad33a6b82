from typing import Any

import pytest

from worker.timeline import jobs, parse
from worker.timeline.jobs import Job
from worker.timeline.parse import Entry

MS = 1_000_000


def entry(name: str, at_ms: float, job_id: str = "j", *, exact: bool = True, **fields: Any) -> Entry:
    return Entry(round(at_ms * MS), 0, name, {"job_id": job_id, **fields}, exact=exact)


def one(*entries: Entry) -> Job:
    (job,) = jobs.collect(entries)
    return job


def test_a_whole_job_has_every_number(own_log: str) -> None:
    job = one(*parse.read(own_log))
    assert (job.job_id, job.outcome, job.undelivered) == ("job-1", "finished", False)
    assert (job.ttft_ns, job.first_chunk_ns, job.e2el_ns) == (105 * MS, 125 * MS, 1105 * MS)
    # 101 tokens: the first ends the prefill, the other hundred share the second that follows.
    assert job.tpot_ns == 10 * MS
    assert (job.prompt_tokens, job.output_tokens) == (40, 101)
    assert job.prefill_tokens_per_s == pytest.approx(500)
    assert job.decode_tokens_per_s == pytest.approx(101 / 0.990)


def test_a_job_that_only_began_has_no_numbers() -> None:
    job = one(entry("job.accepted", 1))
    assert (job.outcome, job.ttft_ns, job.e2el_ns, job.tpot_ns, job.output_tokens) == (
        "running",
        None,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (entry("job.failed", 9, code="server_lost", status=502), "failed server_lost"),
        (entry("job.cancelled", 9), "cancelled"),
        (entry("job.finished", 9), "finished"),
    ],
)
def test_the_outcome_is_how_the_job_ended(end: Entry, outcome: str) -> None:
    assert one(entry("job.accepted", 1), end).outcome == outcome


def test_a_lost_result_is_told() -> None:
    lost = one(entry("job.accepted", 1), entry("result.undelivered", 9, reason="500"))
    assert (lost.outcome, lost.undelivered, lost.e2el_ns) == ("undelivered", True, None)
    # An error nobody could be told, and a log of before this end had a name.
    for name, outcome in (("job.failed", "failed"), ("job.finished", "finished")):
        told = one(entry("job.accepted", 1), entry(name, 5), entry("result.undelivered", 9, reason="500"))
        assert (told.outcome, told.undelivered) == (outcome, True)


@pytest.mark.parametrize("output_tokens", [0, 1, None, -3, "many"])
def test_time_per_token_needs_a_token_after_the_first(output_tokens: object) -> None:
    finished = entry("job.finished", 9, output_tokens=output_tokens)
    assert one(entry("job.accepted", 1), entry("job.token_received", 3), finished).tpot_ns is None


@pytest.mark.parametrize("decode_ms", [0, None, -1.0])
def test_a_rate_needs_a_time(decode_ms: object) -> None:
    finished = entry("job.finished", 9, output_tokens=5, decode_ms=decode_ms)
    assert one(entry("job.accepted", 1), finished).decode_tokens_per_s is None


def test_of_repeated_events_the_first_counts() -> None:
    job = one(entry("job.accepted", 1), entry("job.finished", 5, output_tokens=7), entry("job.finished", 9))
    assert (job.e2el_ns, job.output_tokens) == (4 * MS, 7)


def test_jobs_come_in_order_of_acceptance_and_only_if_accepted() -> None:
    found = jobs.collect(
        [
            entry("job.finished", 0, "never accepted"),
            entry("job.accepted", 1, "b"),
            entry("job.accepted", 2, "a"),
            entry("job.accepted", 3, "timeless", exact=False),
        ]
    )
    assert [job.job_id for job in found] == ["b", "a"]


def test_a_clock_set_back_gives_no_negative_time() -> None:
    early = [entry("job.finished", 1, output_tokens=9), entry("job.accepted", 4), entry("job.token_received", 6)]
    job = one(*early)
    assert (job.e2el_ns, job.tpot_ns) == (None, None)
