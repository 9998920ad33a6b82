from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import threading
import time
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import events
from worker.events import SPANS, VOCABULARY, Event, EventWriter

SAMPLES: dict[Any, Any] = {
    str: "text", bool: True, int: 7, float: 0.5, list[str]: ["a", "b"], int | None: 7, float | None: 0.5,
}  # fmt: skip
STAMP = {"at_ns", "seq", "event"}
KINDS = pytest.mark.parametrize("kind", VOCABULARY.values(), ids=VOCABULARY.keys())
ANY_TEXT = st.text(st.characters(exclude_categories=()))


def sample(kind: type[Event]) -> Event:
    hints = get_type_hints(kind)
    return kind(**{field.name: SAMPLES[hints[field.name]] for field in dataclasses.fields(kind)})


def parse(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def joined(text: str) -> str:
    """Join surrogate pairs: as JSON escapes, two halves side by side are one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


class Calls(io.StringIO):
    """A stream that remembers how it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def write(self, text: str) -> int:
        self.calls.append(text)
        return super().write(text)

    def flush(self) -> None:
        self.calls.append("flush")


@KINDS
def test_a_name_is_its_class(kind: type[Event]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*", kind.name)
    assert kind.__name__ == "".join(word.capitalize() for word in re.split(r"[._]", kind.name))


@KINDS
def test_an_event_says_what_it_means(kind: type[Event]) -> None:
    # dataclass() writes a docstring of its own where there is none: the signature.
    assert kind.__doc__
    assert kind.__doc__ != Event.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")


@KINDS
def test_an_event_cannot_be_changed(kind: type[Event]) -> None:
    event = sample(kind)
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, field.name, getattr(event, field.name))
    assert dataclasses.is_dataclass(kind)
    assert event == sample(kind)


@KINDS
def test_fields_carry_their_unit_and_leave_the_stamp_alone(kind: type[Event]) -> None:
    hints = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    assert not names & STAMP
    for name in names:
        if hints[name] in {float, float | None}:
            assert name.endswith(("_s", "_ms"))
        assert not re.search(r"_(sec|seconds|time|duration|mb|gb|size)$", name)


@KINDS
def test_every_event_is_written_as_it_is(kind: type[Event]) -> None:
    stream = io.StringIO()
    event = sample(kind)
    EventWriter(stream).write(event)
    (record,) = parse(stream)
    assert record["event"] == kind.name
    assert {name: value for name, value in record.items() if name not in STAMP} == dataclasses.asdict(event)


def test_the_vocabulary_is_closed() -> None:
    assert set(VOCABULARY.values()) == set(Event.__subclasses__())
    before = dict(VOCABULARY)
    with pytest.raises(TypeError, match=r"'job\.accepted' is defined twice"):
        type("Again", (Event,), {}, name="job.accepted")
    with pytest.raises(TypeError):
        type("Nameless", (Event,), {})
    assert before == VOCABULARY


@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS.keys())
def test_a_span_lies_between_two_known_events(span: events.Span) -> None:
    assert span.start in VOCABULARY
    assert span.end in VOCABULARY
    assert span.start != span.end
    assert span.meaning


def test_no_two_spans_measure_the_same() -> None:
    assert len({(span.start, span.end) for span in SPANS.values()}) == len(SPANS)


def test_a_job_can_be_followed_by_its_id() -> None:
    jobs = [kind for name, kind in VOCABULARY.items() if name.startswith(("job.", "result."))]
    assert jobs
    assert all("job_id" in {field.name for field in dataclasses.fields(kind)} for kind in jobs)


def test_lines_are_numbered_and_stamped_on_writing() -> None:
    stream = io.StringIO()
    writer = EventWriter(stream)
    before_ns = time.time_ns()
    for number in range(3):
        writer.write(events.JobAccepted(job_id=str(number)))
    after_ns = time.time_ns()
    records = parse(stream)
    assert [record["seq"] for record in records] == [1, 2, 3]
    assert [record["job_id"] for record in records] == ["0", "1", "2"]
    stamps = [record["at_ns"] for record in records]
    assert before_ns <= stamps[0] <= stamps[1] <= stamps[2] <= after_ns


@pytest.mark.parametrize("at_ns", [0, 1_700_000_000_000_000_001])
def test_a_fact_from_earlier_keeps_its_time(at_ns: int) -> None:
    stream = io.StringIO()
    EventWriter(stream).write(events.ContainerStarted(), at_ns=at_ns)
    assert parse(stream)[0]["at_ns"] == at_ns


def test_the_stamp_comes_first() -> None:
    stream = io.StringIO()
    EventWriter(stream).write(events.ServerLogged(line="x"))
    assert list(parse(stream)[0]) == ["at_ns", "seq", "event", "line"]


def test_a_line_is_one_write_and_leaves_at_once() -> None:
    stream = Calls()
    writer = EventWriter(stream)
    writer.write(events.ServerLogged(line="a\nb"))
    writer.write(events.JobAccepted(job_id="j"))
    assert [call if call == "flush" else call[-1:] for call in stream.calls] == ["\n", "flush", "\n", "flush"]
    assert all(call.count("\n") == 1 for call in stream.calls if call != "flush")


def test_a_reader_at_the_other_end_of_a_pipe_sees_a_line_without_waiting() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as stream:
        EventWriter(stream).write(events.BootReady(model="m"))
        assert json.loads(reader.readline())["model"] == "m"


def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    EventWriter().write(events.BootReady(model="m"))
    assert json.loads(capsys.readouterr().out)["event"] == "boot.ready"


@settings(deadline=None, database=None)
@given(text=ANY_TEXT)
def test_any_text_is_one_ascii_line(text: str) -> None:
    stream = io.StringIO()
    EventWriter(stream).write(events.ServerLogged(line=text))
    line = stream.getvalue()
    assert line.isascii()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert joined(json.loads(line)["line"]) == joined(text)


def test_a_number_that_is_none_is_refused_and_the_writer_goes_on() -> None:
    stream = io.StringIO()
    writer = EventWriter(stream)
    finished = sample(events.JobFinished)
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.write(dataclasses.replace(finished, prefill_ms=float("nan")))
    writer.write(finished)
    assert [record["event"] for record in parse(stream)] == ["job.finished"]


def test_threads_do_not_mix_their_lines() -> None:
    stream = io.StringIO()
    writer = EventWriter(stream)
    go = threading.Barrier(8)

    def report(number: int) -> None:
        go.wait()
        for _ in range(100):
            writer.write(events.ServerLogged(line=f"{number}" * 50))

    threads = [threading.Thread(target=report, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = parse(stream)
    assert [record["seq"] for record in records] == list(range(1, 801))
    assert all(len(set(record["line"])) == 1 for record in records)
    stamps = [record["at_ns"] for record in records]
    assert stamps == sorted(stamps)


# --- Listening


def test_a_listener_hears_what_was_and_what_comes_but_not_the_servers_log() -> None:
    writer = events.EventWriter(io.StringIO())
    heard: list[tuple[str, int]] = []
    writer.write(events.ContainerStarted(), at_ns=5)
    writer.write(events.ServerLogged(line="x"), at_ns=6)
    writer.listen(lambda event, at_ns: heard.append((event.name, at_ns)))
    assert heard == [("container.started", 5)]
    writer.write(events.ServerLogged(line="x"), at_ns=7)
    writer.write(events.WorkerStopped(exit_code=0), at_ns=8)
    assert heard == [("container.started", 5), ("worker.stopped", 8)]


def test_without_a_listener_only_the_latest_are_kept() -> None:
    writer = events.EventWriter(io.StringIO())
    for at_ns in range(1000):
        writer.write(events.ContainerStarted(), at_ns=at_ns)
    heard: list[int] = []
    writer.listen(lambda _, at_ns: heard.append(at_ns))
    assert heard == list(range(1000 - events.RECENT_EVENTS, 1000))
