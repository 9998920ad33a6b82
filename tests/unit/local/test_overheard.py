from __future__ import annotations

import io

import pytest

from worker import events
from worker.events import Event, EventWriter
from worker.local.overheard import read, relay

TOLD: list[Event] = [
    events.LoopStarted(concurrency=3),
    events.JobFailed(job_id="a", code="x", status=404, message='half \ud83e "quoted"\n'),
    events.ServerLogged(line="{not an event}"),
    events.ServerSpawned(pid=2, argv=["a", "b"]),
]


def test_what_a_worker_writes_is_read_back_and_passed_on_as_it_was() -> None:
    written, passed, heard = io.StringIO(), io.StringIO(), []
    writer = EventWriter(written)
    for at_ns, event in enumerate(TOLD):
        writer.write(event, at_ns=at_ns)
    lines = ["Python said something\n", *written.getvalue().splitlines(keepends=True), "the end"]
    relay(lines, passed, lambda event, at_ns: heard.append((event, at_ns)))
    assert passed.getvalue() == "".join(lines)
    # Nobody counts the server's log, and it can be long.
    assert heard == [(event, at_ns) for at_ns, event in enumerate(TOLD) if not isinstance(event, events.ServerLogged)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "[1]",
        "null",
        '{"event": "loop.started", "at_ns": 1}',
        '{"event": "loop.started", "concurrency": 1}',
        '{"event": "unheard.of", "at_ns": 1}',
        '{"event": ["loop.started"], "at_ns": 1}',
        '{"event": "loop.started", "at_ns": "x", "concurrency": 1}',
    ],
)
def test_any_other_line_is_no_event(line: str) -> None:
    assert read(line) is None
