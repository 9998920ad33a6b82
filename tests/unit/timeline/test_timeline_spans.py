from typing import Any

import pytest

from worker.events import SPANS, Span
from worker.timeline import phases, spans
from worker.timeline.parse import Entry
from worker.timeline.spans import State, Stretch

TABLE = {"outer": Span("a", "d", "all"), "inner": Span("b", "c", "some"), "step": Span("c", "d", "rest")}


def entry(name: str, at_ns: int, *, exact: bool = True, **fields: Any) -> Entry:
    return Entry(at_ns, 0, name, fields, exact=exact)


def placed(*entries: Entry) -> list[tuple[str, int, int, State]]:
    found = spans.place(entries, TABLE)
    return [(stretch.name, stretch.start_ns, stretch.end_ns, stretch.state) for stretch in found]


def test_pairs_become_stretches_in_order_of_start() -> None:
    assert placed(entry("a", 1), entry("b", 2), entry("c", 5), entry("d", 9)) == [
        ("outer", 1, 9, State.CLOSED),
        ("inner", 2, 5, State.CLOSED),
        ("step", 5, 9, State.CLOSED),
    ]


def test_a_missing_end_lasts_until_the_last_entry() -> None:
    assert placed(entry("b", 2), entry("x", 9)) == [("inner", 2, 9, State.OPEN)]


def test_a_missing_start_is_not_guessed() -> None:
    assert placed(entry("x", 1), entry("c", 5), entry("d", 6)) == [("step", 5, 6, State.CLOSED)]


def test_a_repeated_start_is_the_same_stretch_and_a_new_one_after_its_end_another() -> None:
    assert placed(entry("b", 2), entry("b", 3), entry("c", 5), entry("b", 7), entry("c", 8)) == [
        ("inner", 2, 5, State.CLOSED),
        ("step", 5, 8, State.OPEN),
        ("inner", 7, 8, State.CLOSED),
    ]


def test_a_start_that_lost_the_race_against_its_end_took_no_time() -> None:
    assert placed(entry("c", 5), entry("b", 6), entry("d", 9)) == [("step", 5, 9, State.CLOSED)]


def test_jobs_are_paired_by_their_id() -> None:
    found = spans.place(
        [
            entry("b", 1, job_id="one"),
            entry("b", 2, job_id="two"),
            entry("c", 3, job_id="two"),
            entry("c", 7, job_id="one"),
        ],
        {"inner": TABLE["inner"]},
    )
    assert [(stretch.job_id, stretch.took_ns) for stretch in found] == [("one", 6), ("two", 1)]


def test_a_workers_stretch_may_end_with_a_job() -> None:
    (wait,) = spans.place([entry("loop.started", 1), entry("job.accepted", 4, job_id="x")], {"wait": SPANS["wait"]})
    assert (wait.job_id, wait.took_ns, wait.idle) == (None, 3, True)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((0, 20), (10, 15, State.CLOSED)),
        ((0, 15), (10, 15, State.CLOSED)),
        ((12, 14), (12, 14, State.CUT)),
        ((0, 5), (5, 5, State.CUT)),
    ],
)
def test_a_window_cuts_a_stretch(window: tuple[int, int], expected: tuple[int, int, State]) -> None:
    cut = Stretch("s", 10, 15).within(*window)
    assert (cut.start_ns, cut.end_ns, cut.state) == expected


def test_an_open_stretch_stays_open_when_cut() -> None:
    assert Stretch("s", 10, 15, state=State.OPEN).within(0, 12).state is State.OPEN


PHASES = {"spawned": "start", "opened": "metadata", "metadata": "metadata", "loaded": "poll"}


def parts(*entries: Entry) -> list[tuple[str, int, int]]:
    divided = spans.divide(Stretch("load", 0, 100), entries, PHASES, "before")
    return [(part.name, part.start_ns, part.end_ns) for part in divided.parts]


def test_each_landmark_opens_a_phase_that_lasts_to_the_next() -> None:
    assert parts(entry("spawned", 10), entry("opened", 30), entry("metadata", 40), entry("loaded", 90)) == [
        ("before", 0, 10),
        ("start", 10, 30),
        ("metadata", 30, 90),
        ("poll", 90, 100),
    ]


def test_a_repeated_landmark_counts_once() -> None:
    assert parts(entry("spawned", 10), entry("loaded", 90), entry("opened", 92), entry("loaded", 95))[1:] == [
        ("start", 10, 90),
        ("poll", 90, 92),
        ("metadata", 92, 100),
    ]


def test_a_second_attempt_has_its_own_phases() -> None:
    retried = [entry("spawned", 10), entry("opened", 30), entry("spawned", 50), entry("opened", 60)]
    assert [name for name, _, _ in parts(*retried)] == ["before", "start", "metadata", "start", "metadata"]


def test_phases_need_exact_landmarks_inside_the_stretch() -> None:
    assert parts(entry("spawned", 10, exact=False), entry("opened", 130), entry("other", 5)) == []


def test_a_phase_without_length_is_left_out() -> None:
    assert parts(entry("spawned", 0), entry("opened", 50), entry("loaded", 50)) == [("start", 0, 50), ("poll", 50, 100)]


def test_only_the_server_and_a_load_have_phases() -> None:
    entries = (entry("server.configured", 10), entry("server.listened", 20))
    assert [part.name for part in phases.refine(Stretch("server", 0, 50), entries).parts] == [
        "process start",
        "store check",
        "GPU discovery",
    ]
    assert phases.refine(Stretch("weights", 0, 50), entries).parts == ()
