"""One cold start as the benches take it: timed at the platform, and told apart from every way not to start."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import first_chunk
from bench.first_chunk import NotStarted, Speeds, shareable, spread
from tests.conftest import FAKE, MODEL, Marked

LIMIT_S = 60.0


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_a_worker_is_timed_and_its_output_kept(store_home: Path, marked: Marked) -> None:
    settings = {**marked.environ, "WORKER_SERVER_COMMAND": FAKE, "WORKER_LANDING": "0"}
    start = first_chunk.measure(store_home, MODEL, speeds=True, until="loop.started", **settings)
    assert 0 < start.first_chunk_s < LIMIT_S
    told = [json.loads(line) for line in start.lines if line.startswith('{"at_ns"')]
    times = {record["event"]: record["at_ns"] for record in told}
    accepted = [record for record in told if record["event"] == "job.accepted"]
    assert len(accepted) == 2, "one for the clock, one for the speeds"
    assert times["container.started"] < accepted[0]["at_ns"]
    # What the fake server counts: a thousand prompt tokens and a hundred others a second.
    assert start.speeds == Speeds(pytest.approx(1000), pytest.approx(100))


def test_without_being_asked_there_is_no_second_job(store_home: Path, marked: Marked) -> None:
    start = first_chunk.measure(store_home, MODEL, **marked.environ, WORKER_SERVER_COMMAND=FAKE)
    assert start.speeds is None
    assert sum('"job.accepted"' in line for line in start.lines) == 1


def test_a_worker_that_cannot_boot_is_told_by_its_own_words(store_home: Path, marked: Marked) -> None:
    settings = {**marked.environ, "WORKER_SERVER_COMMAND": FAKE, "FAKE_LOAD_ERROR": "no such magic"}
    with pytest.raises(NotStarted, match="no such magic"):
        first_chunk.measure(store_home, MODEL, **settings)


def test_a_job_that_fails_is_no_start(store_home: Path, marked: Marked) -> None:
    settings = {**marked.environ, "WORKER_SERVER_COMMAND": FAKE, "FAKE_ERROR_AT_TOKEN": "0"}
    with pytest.raises(NotStarted, match=r"^the job failed: .*CUDA error"):
        first_chunk.measure(store_home, MODEL, **settings)


@pytest.mark.parametrize(
    ("text", "limit_s", "words"),
    [
        ("print('out of luck')", LIMIT_S, "^out of luck$"),
        ("pass", LIMIT_S, "^the process ended silently$"),
        ("import time; time.sleep(60)", 0.5, r"^no chunk within 0\.5 s$"),
    ],
)
def test_a_process_that_is_no_worker_is_no_start(
    text: str, limit_s: float, words: str, store_home: Path, marked: Marked
) -> None:
    with pytest.raises(NotStarted, match=words):
        first_chunk.measure(store_home, MODEL, command=script(text), limit_s=limit_s, **marked.environ)


def test_what_is_shared_has_events_and_nothing_of_the_machine() -> None:
    events = [
        {"at_ns": 1, "seq": 1, "event": "server.spawned", "pid": 7, "argv": ["/srv/me/ollama"]},
        {"at_ns": 2, "seq": 2, "event": "server.logged", "line": "model=/srv/me/model"},
        {"at_ns": 3, "seq": 3, "event": "landing.finished", "path": "/x", "reason": "/srv/me/x/landed has room"},
    ]
    lines = [json.dumps(event, separators=(",", ":")) for event in events]
    kept = [json.loads(line) for line in shareable(["not an event", *lines, "{}"], Path("/srv/me/x"))]
    assert kept == [
        {"at_ns": 1, "seq": 1, "event": "server.spawned", "pid": 7},
        {"at_ns": 3, "seq": 3, "event": "landing.finished", "reason": "HOME/landed has room"},
    ]


def test_a_spread_is_median_least_and_most() -> None:
    assert spread([3.0, 1.0, 2.0004]) == {"median_s": 2.0, "min_s": 1.0, "max_s": 3.0}
    assert spread([1.26, 1.0], 1, "") == {"median": 1.1, "min": 1.0, "max": 1.3}
