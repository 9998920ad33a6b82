from typing import Any

import pytest

from worker.timeline import foreign
from worker.timeline.parse import Entry

S = 1_000_000_000


def entry(name: str, at_s: float, *, exact: bool = True, **fields: Any) -> Entry:
    return Entry(round(at_s * S), 0, name, fields, exact=exact)


def request(at_s: float, took: str, route: str = "/api/chat", status: int = 200) -> Entry:
    return entry("request.finished", at_s, took=took, route=route, status=status)


READY = [entry("server.configured", 0), entry("gpu.discovered", 5)]
LOAD = [entry("runner.spawned", 11), entry("runner.started", 30)]
ANSWER = [
    entry("slot.launched", 30.1),
    entry("prompt.timed", 33.9, prefill_ms=900.0, prompt_tokens=12),
    entry("output.timed", 33.9, decode_ms=2900.0, output_tokens=30),
]


def told(*entries: Entry) -> list[tuple[str, float]]:
    """The events added to `entries`, with their time in seconds."""
    adapted = foreign.adapt(entries)
    return [(made.name, made.at_ns / S) for made in adapted if not any(made is given for given in entries)]


def test_ollamas_start_and_load_are_told_as_events() -> None:
    assert told(*READY, *LOAD) == [
        ("server.spawned", 0),
        ("server.answered", 5),
        ("load.started", 11),
        ("load.finished", 30),
    ]


def test_a_request_with_a_load_in_it_is_a_job_in_pieces() -> None:
    found = told(*READY, *LOAD, *ANSWER, request(34, "24s"))
    assert found[2:] == [
        ("job.accepted", 10),
        ("job.opened", 10),
        ("load.requested", 10),
        ("load.started", 11),
        ("load.finished", 30),
        ("prefill.started", 30),
        ("job.token_received", 31.1),
        ("job.finished", 34),
    ]


def test_a_later_request_prefills_from_its_start() -> None:
    later = [
        entry("slot.launched", 40.1),
        entry("output.timed", 42, decode_ms=500.0, output_tokens=5),
        request(42, "2s"),
    ]
    found = told(*READY, *LOAD, *ANSWER, request(34, "24s"), *later)
    assert [pair for pair in found if pair[1] >= 40] == [
        ("job.accepted", 40),
        ("job.opened", 40),
        ("prefill.started", 40),
        ("job.token_received", 41.5),
        ("job.finished", 42),
    ]


def test_the_runners_numbers_go_with_the_job_they_belong_to() -> None:
    adapted = foreign.adapt([*READY, *LOAD, *ANSWER, request(34, "24s")])
    finished = next(made for made in adapted if made.name == "job.finished")
    assert finished.fields == {
        "job_id": "request 1",
        "prefill_ms": 900.0,
        "prompt_tokens": 12,
        "decode_ms": 2900.0,
        "output_tokens": 30,
    }


def test_runner_lines_without_a_time_still_carry_numbers() -> None:
    timeless = [Entry(line.at_ns, 0, line.name, line.fields, exact=False) for line in ANSWER]
    assert ("job.token_received", 31.1) in told(*READY, *LOAD, *timeless, request(34, "24s"))


def test_the_runner_may_speak_after_the_access_line() -> None:
    launched, *numbers = ANSWER
    late = [Entry(34 * S + 5, 0, line.name, line.fields) for line in numbers]
    assert ("job.token_received", 31.1) in told(*READY, *LOAD, launched, request(34, "24s"), *late)


def test_a_whole_second_gives_way_to_what_the_runner_needed() -> None:
    launched, *numbers = ANSWER
    # Launched at 30.1 and busy for 3.8 s: the request did not end at 33 sharp, nor as late as 34.
    rounded = Entry(33 * S, 0, "request.finished", request(33, "3.9s").fields, coarse=True)
    assert told(*READY, *LOAD, launched, rounded, *numbers)[-4:] == [
        ("job.opened", 30),
        ("prefill.started", 30),
        ("job.token_received", 31),
        ("job.finished", 33.9),
    ]
    exact = Entry(33 * S, 0, "request.finished", rounded.fields)
    assert ("job.finished", 33) in told(*READY, *LOAD, launched, exact, *numbers)
    # It may be late by a second, never by more.
    early = Entry(31 * S, 0, "request.finished", rounded.fields, coarse=True)
    assert ("job.finished", 31.999999999) in told(*READY, *LOAD, launched, early, *numbers)
    silent = told(*READY, *LOAD, launched, rounded)
    assert ("job.finished", 33) in silent


def test_other_requests_meanwhile_change_nothing() -> None:
    launched, *numbers = ANSWER
    poll = request(32, "1ms", route="/api/ps")
    assert ("job.token_received", 31.1) in told(*READY, *LOAD, launched, poll, *numbers, request(34, "24s"))


def test_tasks_at_the_same_time_keep_their_numbers_apart() -> None:
    tasks = [
        entry("slot.launched", 40, task=7),
        entry("slot.launched", 41, task=8),
        entry("output.timed", 44, task=7, output_tokens=70),
        entry("output.timed", 45, task=8, output_tokens=80),
    ]
    adapted = foreign.adapt([*READY, *tasks, request(46, "6s"), request(47, "6s")])
    finished = [made for made in adapted if made.name == "job.finished"]
    assert [(made.fields["job_id"], made.fields["output_tokens"]) for made in finished] == [
        ("request 1", 70),
        ("request 2", 80),
    ]


def test_an_embedding_uses_up_its_task_and_is_no_job() -> None:
    embedding = [entry("slot.launched", 40), request(41, "1s", route="/api/embed")]
    found = told(*READY, *embedding, request(50, "9s"), entry("slot.launched", 60), request(62, "2s"))
    assert [pair for pair in found if pair[0] == "job.opened"] == [("job.opened", 60)]


def test_a_request_the_runner_never_saw_is_a_preload() -> None:
    preload = request(30.1, "20s", route="/api/generate")
    found = told(*READY, *LOAD, preload, entry("slot.launched", 40), request(42, "3s"))
    assert [pair for pair in found if pair[0] == "job.opened"] == [("job.opened", 39)]


def test_older_versions_say_nothing_of_slots_and_every_request_counts() -> None:
    assert ("job.opened", 10) in told(*READY, *LOAD, request(34, "24s", route="/v1/chat/completions"))


@pytest.mark.parametrize("route", ["/api/tags", "/api/version", "/", "/api/embed"])
def test_other_routes_are_no_jobs(route: str) -> None:
    assert told(*READY, request(34, "24s", route=route)) == [("server.spawned", 0), ("server.answered", 5)]


@pytest.mark.parametrize("launched", [[], [entry("slot.launched", 33)]])
def test_a_refused_request_fails_its_job_whether_the_runner_saw_it_or_not(launched: list[Entry]) -> None:
    found = told(*READY, *launched, request(34, "1s", status=500))
    assert found[2:] == [("job.accepted", 33), ("job.opened", 33), ("job.failed", 34)]


def test_a_pull_is_where_the_weights_came_from() -> None:
    found = told(*READY, request(65, "1m0s", route="/api/pull"))
    assert found[2:] == [("weights.requested", 5), ("weights.placed", 65)]


def test_the_sdks_job_is_the_job_of_the_request_inside_it() -> None:
    sdk = [entry("sdk_loop.announced", 8), entry("sdk_job.started", 9, job_id="u1")]
    adapted = foreign.adapt(
        [*READY, *sdk, *LOAD, *ANSWER, request(34, "24s"), entry("sdk_job.finished", 35, job_id="u1")]
    )
    jobs = [(made.name, made.fields["job_id"], made.at_ns / S) for made in adapted if made.name.startswith("job.")]
    assert jobs == [
        ("job.accepted", "u1", 9),
        ("job.opened", "u1", 10),
        ("job.token_received", "u1", 31.1),
        ("job.finished", "u1", 34),
        ("job.finished", "u1", 35),
    ]
    assert ("loop.started", 8) in told(*READY, *sdk)


def test_runners_started_to_look_for_devices_load_nothing() -> None:
    probing = [entry("server.configured", 0), entry("runner.spawned", 1), entry("gpu.discovered", 5)]
    assert [pair for pair in told(*probing, *LOAD) if pair[0] == "load.started"] == [("load.started", 11)]


def test_a_log_that_begins_after_the_servers_start_still_has_its_load() -> None:
    assert told(*LOAD) == [("load.started", 11), ("load.finished", 30)]


def test_a_repeated_started_in_is_no_second_load() -> None:
    found = told(*READY, *LOAD, entry("runner.started", 30.5))
    assert [name for name, _ in found].count("load.finished") == 1


def test_lines_without_a_time_start_and_end_nothing() -> None:
    assert told(entry("server.configured", 0, exact=False), entry("runner.spawned", 1, exact=False)) == []


def test_an_unreadable_latency_is_passed_over() -> None:
    assert told(*READY, request(34, "soon")) == [("server.spawned", 0), ("server.answered", 5)]
