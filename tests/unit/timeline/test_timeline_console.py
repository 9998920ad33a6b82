"""One start, in every wrapping a console or a shell puts around it."""

import csv
import io
import json
import re
from collections.abc import Callable

import pytest

from worker.timeline import model, parse
from worker.timeline.coverage import GAP
from worker.timeline.model import Timeline

Shape = list[tuple[str, int, int]]

STAMPED = re.compile(r"(\S+Z) (.*)")


def shape(timeline: Timeline) -> Shape:
    whole = [*timeline.spans, *timeline.gaps, *(part for span in timeline.spans for part in span.parts)]
    return [(piece.name, piece.start_ns, piece.end_ns) for piece in whole]


def only(content: str) -> Timeline:
    (timeline,) = model.timelines(parse.read(content))
    return timeline


def records(content: str) -> list[tuple[str, str]]:
    found = [STAMPED.fullmatch(line) for line in content.splitlines()]
    return [(match[1], match[2]) for match in found if match]


def as_json_list(content: str) -> str:
    return json.dumps([{"timestamp": stamp, "level": "info", "message": text} for stamp, text in records(content)])


def as_json_lines(content: str) -> str:
    return "\n".join(json.dumps({"log": text + "\n", "time": stamp}) for stamp, text in records(content))


def as_newest_first(content: str) -> str:
    return "\n".join(reversed(content.splitlines()))


def as_csv(content: str) -> str:
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([("timestamp", "worker", "message"), *((a, "w1", b) for a, b in records(content))])
    return stream.getvalue()


def as_event_stream(content: str) -> str:
    events = [{"source": "container", "line": text, "ts": stamp} for stamp, text in records(content)]
    return "".join(f"id: {event['ts']}\ndata: {json.dumps(event)}\n\n" for event in events)


def as_compose(content: str) -> str:
    return "\n".join(f"engine-1  | {line}" for line in content.splitlines())


@pytest.mark.parametrize(
    "wrap",
    [as_json_list, as_json_lines, as_newest_first, as_csv, as_event_stream, as_compose],
    ids=lambda wrap: wrap.__name__,
)
def test_a_wrapping_changes_nothing(log: Callable[[str], str], wrap: Callable[[str], str]) -> None:
    content = log("stock_docker.log")
    assert len(records(content)) == len(content.splitlines())
    assert shape(only(wrap(content))) == shape(only(content))


@pytest.mark.parametrize("wrap", [as_json_list, as_json_lines, as_csv, as_event_stream], ids=lambda wrap: wrap.__name__)
def test_this_workers_events_keep_their_own_time_in_any_wrapping(own_log: str, wrap: Callable[[str], str]) -> None:
    # The console stamps a line whenever it gets it.
    late = "\n".join(f"2026-11-30T09:00:00.{number:03}Z {line}" for number, line in enumerate(own_log.splitlines()))
    assert shape(only(wrap(late))) == shape(only(own_log))


def test_without_timestamps_only_ollamas_own_lines_place_spans(log: Callable[[str], str]) -> None:
    bare = "\n".join(text for _, text in records(log("stock_docker.log")))
    timeline = only(bare)
    assert [(step.name, round(step.took_ns / 1e9, 3)) for step in timeline.path] == [
        ("server", 6.506),
        # The request's end is known to the second only; what its runner needed puts it 20 ms beside the truth.
        (GAP, 4.869),
        ("schedule", 1.023),
        ("load", 40.809),
        ("prefill", 5.218),
    ]
    assert [part.name for span in timeline.spans for part in span.parts] == ["store check", "GPU discovery"]
    assert timeline.notes == (
        "25 lines have no time of their own; `docker logs -t` would give them one",
        "requests are timed in whole seconds in this log: their ends may be up to 1 s later than shown",
    )


def test_an_older_ollama_tells_less_but_in_the_same_words(log: Callable[[str], str]) -> None:
    timeline = only(log("older_ollama.log"))
    assert [(span.name, span.took_ns / 1e9) for span in timeline.spans] == [
        ("server", 1.501),
        ("weights", 21),
        ("open", 0),
        ("schedule", 0.6),
        ("load", 4),
        ("answer", 1.9),
    ]
    assert (timeline.end_event, timeline.total_ns / 1e9) == ("job.finished", 30)
    assert not [note for note in timeline.notes if "never reported" in note]
    assert [(job.job_id, job.ttft_ns, job.e2el_ns) for job in timeline.jobs] == [("request 1", None, 6_500_000_000)]
