import itertools
import math
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from worker import events
from worker.events import VOCABULARY
from worker.timeline import model, parse
from worker.timeline.coverage import GAP
from worker.timeline.foreign import FOREIGN_SPANS
from worker.timeline.model import Timeline
from worker.timeline.parse import Entry
from worker.timeline.phases import PHASES
from worker.timeline.spans import State

MS = 1_000_000


def entry(name: str, at_ns: int, **fields: Any) -> Entry:
    return Entry(at_ns, at_ns, name, fields, own=name in VOCABULARY)


def one(*entries: Entry) -> Timeline:
    (timeline,) = model.timelines(entries)
    return timeline


def took_ms(timeline: Timeline, name: str) -> float:
    return math.fsum(span.took_ns for span in timeline.spans if span.name == name) / MS


PREFIX = ("container.started", "worker.started", "server.spawned", "config.loaded", "server.answered")
BEGUN = [entry(name, 0) for name in PREFIX]


def test_a_boot_and_a_job_are_one_timeline(own_log: str) -> None:
    timeline = one(*parse.read(own_log))
    assert (timeline.start_event, timeline.end_event) == ("container.started", "job.chunk_posted")
    assert timeline.total_ns == 5425 * MS
    assert timeline.own
    assert took_ms(timeline, "weights") == 2398
    assert took_ms(timeline, "load") == 2140
    assert timeline.idle_ns == 500 * MS
    assert timeline.gap_ns == 20 * MS
    names = [step.name for step in timeline.path if step.name != GAP]
    assert names == ["container", "launch", "config", "weights", "load", "loop", "wait", "open", "prefill", "post"]


def test_the_servers_own_lines_divide_its_start_and_the_load(own_log: str) -> None:
    timeline = one(*parse.read(own_log))
    parts = {
        span.name: [(part.name, part.took_ns / MS) for part in span.parts] for span in timeline.spans if span.parts
    }
    assert parts == {
        "server": [("process start", 140), ("store check", 40), ("GPU discovery", 600), ("first answer", 50)],
        "load": [
            ("schedule", 90),
            ("runner start", 400),
            ("metadata", 200),
            ("read", 50),
            ("upload", 1000),
            ("context", 250),
            ("probe", 100),
            ("slots", 20),
            ("health poll", 20),
            ("last answer", 10),
        ],
    }


def test_without_a_job_a_start_ends_when_it_is_ready() -> None:
    timeline = one(*BEGUN, entry("load.started", 2), entry("load.finished", 7), entry("boot.ready", 9))
    assert (timeline.total_ns, timeline.end_event, timeline.gap_ns) == (9, "boot.ready", 4)


def test_a_failed_start_ends_with_its_failure_and_says_why() -> None:
    timeline = one(
        *BEGUN,
        entry("weights.requested", 2),
        entry("boot.failed", 9, code="weights_unavailable", message="no source has it", exit_code=12),
        entry("worker.stopped", 50, exit_code=12),
    )
    assert (timeline.total_ns, timeline.end_event) == (9, "boot.failed")
    weights = timeline.spans[-1]
    assert (weights.state, weights.took_ns) == (State.OPEN, 7)
    assert timeline.notes == (
        "weights: its end was never reported",
        "the start failed: no source has it (weights_unavailable)",
    )


def test_a_start_that_hangs_ends_with_the_last_thing_heard() -> None:
    timeline = one(*BEGUN, entry("load.started", 2), entry("tensors.started", 8))
    assert (timeline.end_event, timeline.total_ns) == ("tensors.started", 8)
    load = timeline.spans[-1]
    assert (load.name, load.state, load.took_ns) == ("load", State.OPEN, 6)


def test_only_the_job_that_ended_the_start_is_in_it() -> None:
    timeline = one(
        entry("loop.started", 0),
        entry("job.accepted", 1, job_id="slow"),
        entry("job.accepted", 2, job_id="quick"),
        entry("job.opened", 3, job_id="slow"),
        entry("job.opened", 4, job_id="quick"),
        entry("job.token_received", 5, job_id="quick"),
        entry("job.chunk_posted", 6, job_id="quick"),
        entry("job.token_received", 8, job_id="slow"),
        entry("job.finished", 9, job_id="quick"),
    )
    assert {span.job_id for span in timeline.spans} == {None, "quick"}
    assert {span.name: span.state for span in timeline.spans}["decode"] is State.CUT
    assert [job.job_id for job in timeline.jobs] == ["slow", "quick"]


def test_each_start_of_a_stream_is_taken_apart() -> None:
    first = [entry("container.started", 0), entry("worker.started", 3), entry("boot.ready", 10)]
    second = [entry("container.started", 100), entry("worker.started", 105), entry("boot.ready", 130)]
    assert [timeline.total_ns for timeline in model.timelines((*first, *second))] == [10, 30]
    # A resumed log may have lost the first line of the second start.
    assert [timeline.total_ns for timeline in model.timelines((*first, *second[1:]))] == [10, 25]


def test_a_restarting_container_is_not_one_long_start() -> None:
    attempts = [entry("container.begun", at) for at in (0, 17, 34)]
    timelines = model.timelines((*attempts, entry("server.configured", 36), entry("gpu.discovered", 40)))
    assert [timeline.total_ns for timeline in timelines] == [6]


def test_the_platforms_share_before_the_first_line_is_noted() -> None:
    own = [entry("container.started", 3_500 * MS), entry("worker.started", 3_501 * MS)]
    timeline = one(entry("container.begun", 1_000 * MS), *own)
    assert timeline.start_ns == 3_500 * MS
    assert timeline.notes[-1] == "the platform began to start the container 2.5 s before this timeline begins"


def test_whole_seconds_are_noted_only_where_requests_end_with_them() -> None:
    begun = Entry(0, 0, "container.begun", {}, coarse=True)
    assert one(begun, entry("server.configured", 5), entry("gpu.discovered", 9)).notes == ()
    request = Entry(9, 0, "request.finished", {"took": "3ns", "route": "/api/chat", "status": 200}, coarse=True)
    (note,) = one(begun, entry("server.configured", 5), entry("gpu.discovered", 6), request).notes
    assert note.startswith("requests are timed in whole seconds")


def test_it_is_noted_where_the_weights_came_from(own_log: str) -> None:
    assert one(*parse.read(own_log)).notes == ("weights from volume; not from local (not here)",)


def test_another_images_console_log_is_a_timeline_too(log: Callable[[str], str]) -> None:
    timeline = one(*parse.read(log("stock_docker.log")))
    assert not timeline.own
    assert (timeline.start_event, timeline.end_event) == ("container.begun", "job.token_received")
    assert [(step.name, round(step.took_ns / 1e9, 3)) for step in timeline.path] == [
        ("startup", 2.205),
        ("server", 6.506),
        (GAP, 4.31),
        ("wait", 0.501),
        ("open", 0.079),
        ("schedule", 1.003),
        ("load", 40.809),
        ("prefill", 5.238),
    ]
    load = next(span for span in timeline.spans if span.name == "load")
    shares = {part.name: part.took_ns / MS for part in load.parts}
    assert (shares["fit"], shares["read"], shares["warm-up"]) == (800, 22_000, 11_000)


landmarks = sorted({name for table, _ in PHASES.values() for name in table})
any_entries = st.lists(
    st.builds(
        lambda name, at_ns, job_id, exact: Entry(
            at_ns,
            0,
            name,
            {"job_id": job_id, "took": f"{at_ns}ns", "route": "/api/chat", "status": 200, "decode_ms": 1e-5},
            own=exact and name in VOCABULARY,
            exact=exact,
        ),
        st.sampled_from([*VOCABULARY, *landmarks, "container.begun", "request.finished", "sdk_job.started"]),
        st.integers(0, 300),
        st.sampled_from(["one", "two"]),
        st.sampled_from([True, True, True, False]),
    ),
    min_size=1,
    max_size=60,
).map(lambda entries: sorted(entries, key=lambda entry: entry.at_ns))


@given(any_entries)
def test_whatever_happened_spans_and_gaps_add_up_to_the_total(entries: list[Entry]) -> None:
    for timeline in model.timelines(entries):
        assert timeline.total_ns >= 0
        assert timeline.covered_ns + timeline.gap_ns == timeline.total_ns
        moments = range(timeline.start_ns, timeline.end_ns)
        covered = sum(any(span.start_ns <= at < span.end_ns for span in timeline.spans) for at in moments)
        assert covered == timeline.covered_ns
        assert sum(step.took_ns for step in timeline.path) == timeline.total_ns


@given(any_entries)
def test_whatever_happened_spans_stay_inside_the_window_and_phases_fill_their_span(entries: list[Entry]) -> None:
    for timeline in model.timelines(entries):
        for span in timeline.spans:
            assert timeline.start_ns <= span.start_ns <= span.end_ns <= timeline.end_ns
            if span.parts:
                assert (span.parts[0].start_ns, span.parts[-1].end_ns) == (span.start_ns, span.end_ns)
            for before, after in itertools.pairwise(span.parts):
                assert before.end_ns == after.start_ns


@given(any_entries)
def test_no_start_loses_or_repeats_an_entry(entries: list[Entry]) -> None:
    dropped = {"container.created", "container.begun"}
    boots = [entry for timeline in model.timelines(entries) for entry in timeline.entries]
    kept = [entry for entry in boots if any(entry is given for given in entries)]
    missing = [given for given in entries if not any(given is entry for entry in kept)]
    assert len(kept) + len(missing) == len(entries)
    assert {given.name for given in missing if given.exact} <= dropped


def test_the_vocabulary_names_every_end_of_a_start() -> None:
    assert set(model._OWN_ENDS) | {model._PASSED} <= set(VOCABULARY)
    foreign_names = {name for span in FOREIGN_SPANS.values() for name in (span.start, span.end)}
    assert set(model._FOREIGN_ENDS) <= foreign_names
    assert events.BootFailed.name in model._OWN_ENDS
