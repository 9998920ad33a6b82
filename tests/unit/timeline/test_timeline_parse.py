import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.timeline import parse
from worker.timeline.parse import Entry, UnreadableLog
from worker.timeline.stamps import SECOND_NS

T_NS = 1_796_040_000 * SECOND_NS
"""2026-11-30T12:00:00Z."""


def event(name: str, at_ns: int, seq: int = 1, **fields: object) -> str:
    return json.dumps({"at_ns": at_ns, "seq": seq, "event": name, **fields})


def lines(*texts: str) -> str:
    return "\n".join(texts)


def names(content: str) -> list[str]:
    return [entry.name for entry in parse.read(content)]


def test_an_event_keeps_its_time_number_and_fields() -> None:
    assert parse.read(event("boot.ready", T_NS, 7, model="m")) == (
        Entry(T_NS, 7, "boot.ready", {"model": "m"}, own=True),
    )


def test_a_server_line_inside_an_event_is_read_with_the_events_time() -> None:
    entries = parse.read(event("server.logged", T_NS, 4, line="llama_context: constructing llama_context"))
    assert entries == (Entry(T_NS, 4, "context.started", {}),)


def test_lines_out_of_order_are_sorted_by_time_and_then_by_number() -> None:
    content = "\n".join([event("c", T_NS + 5, 3), event("b", T_NS + 1, 2), event("a", T_NS + 1, 1)])
    assert names(content) == ["a", "b", "c"]


def test_an_event_of_a_later_version_is_kept() -> None:
    assert names(event("moon.landed", T_NS)) == ["moon.landed"]


@pytest.mark.parametrize(
    "broken",
    [
        event("boot.ready", T_NS)[:-4],
        '{"at_ns": "soon", "seq": 1, "event": "boot.ready"}',
        '{"at_ns": true, "seq": 1, "event": "boot.ready"}',
        '{"at_ns": -1, "seq": 1, "event": "boot.ready"}',
        '{"at_ns": 1, "seq": null, "event": "boot.ready"}',
        '{"at_ns": 1, "seq": 1, "event": 5}',
        "\x00\x01\x02",
    ],
)
def test_a_broken_line_is_passed_over(broken: str) -> None:
    assert names(broken + "\n" + event("load.started", T_NS)) == ["load.started"]


def test_the_fine_clock_inside_a_line_beats_a_coarse_one_around_it() -> None:
    content = '2026-11-30T12:00:00Z time=2026-11-30T12:00:00.250Z level=INFO msg="inference compute"'
    (entry,) = parse.read(content)
    assert entry.at_ns == T_NS + SECOND_NS // 4
    assert not entry.coarse


def test_a_line_without_a_time_is_placed_after_the_line_before_and_marked() -> None:
    content = lines(
        "srv    load_model: loading model 'x'",
        'time=2026-11-30T12:00:00.250Z level=INFO msg="starting llama-server"',
        "llama_context: constructing llama_context",
    )
    told = [(entry.name, entry.at_ns - T_NS, entry.exact) for entry in parse.read(content)]
    quarter = SECOND_NS // 4
    assert told == [
        ("model.opened", quarter, False),
        ("runner.spawned", quarter, True),
        ("context.started", quarter, False),
    ]


def test_whole_seconds_never_turn_the_order_of_lines_round() -> None:
    content = lines(
        'time=2026-11-30T12:00:00.900Z level=INFO msg="llama-server started in 1.00 seconds"',
        '[GIN] 2026/11/30 - 12:00:00 | 200 | 800ms | 127.0.0.1 | POST "/api/chat"',
        '[GIN] 2026/11/30 - 12:00:07 | 200 | 800ms | 127.0.0.1 | POST "/api/chat"',
    )
    entries = parse.read(content)
    assert [entry.at_ns - T_NS for entry in entries] == [900_000_000, 900_000_000, 7 * SECOND_NS]
    assert [entry.coarse for entry in entries] == [False, True, True]


def test_a_local_time_is_in_the_zone_of_ollamas_other_lines() -> None:
    content = lines(
        'time=2026-11-30T14:00:00.500+02:00 level=INFO msg="inference compute"',
        '[GIN] 2026/11/30 - 14:00:03 | 200 | 800ms | 127.0.0.1 | POST "/api/chat"',
    )
    assert [entry.at_ns - T_NS for entry in parse.read(content)] == [SECOND_NS // 2, 3 * SECOND_NS]


@pytest.mark.parametrize("written", ["yesterday", "2026-11-30", "2026-11-31T12:00:00Z", "2026-11-30T12:00:00.5Z"])
def test_a_line_of_ollama_with_a_time_nobody_can_read_is_placed_like_one_without(written: str) -> None:
    content = lines(event("boot.ready", T_NS), f'time={written} level=INFO msg="starting llama-server"')
    (spawned,) = (entry for entry in parse.read(content) if entry.name == "runner.spawned")
    readable = written.endswith(".5Z")
    assert (spawned.exact, spawned.at_ns) == (readable, T_NS + readable * SECOND_NS // 2)


def test_lines_before_the_first_time_are_as_early_as_that_time() -> None:
    content = lines(
        "srv load_model: loading model 'x'", "load_tensors: offloading output layer to GPU", event("a.b", 0)
    )
    assert [(entry.name, entry.at_ns) for entry in parse.read(content)] == [
        ("model.opened", 0),
        ("tensors.mapped", 0),
        ("a.b", 0),
    ]


def test_a_mixed_stream_is_read_whole(own_log: str) -> None:
    found = names(own_log)
    assert found[0] == "container.started"
    assert found[-1] == "job.finished"
    assert "sdk_job.started" in found
    assert "tensors.mapped" in found


def test_a_stock_images_console_log_tells_its_milestones(log: Callable[[str], str]) -> None:
    found = names(log("stock_docker.log"))
    milestones = ["container.begun", "server.configured", "server.listened", "gpu.discovered", "sdk_job.started"]
    milestones += ["runner.spawned", "tensors.started", "tensors.mapped", "context.started", "warmup.started"]
    milestones += ["runner.started", "slot.launched", "request.finished", "sdk_job.finished"]
    assert [name for name in found if name in milestones] == [
        *milestones[: milestones.index("runner.started")],
        "runner.started",
        "runner.started",
        *milestones[-3:],
    ]
    assert all(entry.exact for entry in parse.read(log("stock_docker.log")))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "the log is empty"),
        (" \n\n", "the log is empty"),
        ("hello\nworld", "the log has neither the worker's events nor a line of Ollama's start"),
        ("2026-11-30T12:00:00Z hello", "the log has neither the worker's events nor a line of Ollama's start"),
        ("llama_context: constructing llama_context", "no line of Ollama in it has a time"),
    ],
)
def test_a_log_that_says_nothing_is_refused_with_a_reason(content: str, sentence: str) -> None:
    with pytest.raises(UnreadableLog, match=sentence):
        parse.read(content)


@pytest.mark.parametrize(
    ("value", "number"),
    [(3, 3.0), (2.5, 2.5), (None, None), (True, None), ("3", None), (float("nan"), None), (10**400, None), ([], None)],
)
def test_a_field_is_a_number_or_nothing(value: object, number: float | None) -> None:
    assert Entry(0, 0, "x", {"field": value}).number("field") == number
    assert Entry(0, 0, "x", {}).number("field") is None


def test_a_field_is_text_or_empty() -> None:
    entry = Entry(0, 0, "x", {"a": "b", "n": 3, "none": None})
    assert (entry.text("a"), entry.text("n"), entry.text("none"), entry.text("missing")) == ("b", "3", "", "")


@given(st.lists(st.text(max_size=60), max_size=12))
def test_junk_between_events_changes_nothing(junk: list[str]) -> None:
    content = "\n".join(
        ["boot starts", *(line for text in junk for line in (text.replace("{", ""), event("a.b", T_NS)))]
    )
    own = [entry for entry in parse.read(content + "\n" + event("a.b", T_NS)) if entry.own]
    assert len(own) == len(junk) + 1
    assert {entry.at_ns for entry in own} == {T_NS}
