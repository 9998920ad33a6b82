from __future__ import annotations

import re
from pathlib import Path

import pytest

from worker import go_values
from worker.environment import settings

ROOT = Path(__file__).parents[2]
NUMBER, TIME, FLAG = "OLLAMA_CONTEXT_LENGTH", "OLLAMA_KEEP_ALIVE", "OLLAMA_VULKAN"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (NUMBER, ["0", "8192", " 8192 ", '"8192"', "18446744073709551615", "", " ", '""']),
        (TIME, ["-1", "0", "300", "+5", "30m", "-1m", "1h30m", "1.5h", ".5s", "2h45m30s", "100ms", "'5m'"]),
        (FLAG, ["1", "0", "t", "FALSE", "True", "'0'"]),
        ("OLLAMA_LOAD_POLL_MS", ["1", "1000"]),
        ("OLLAMA_SKIP_WARMUP", ["1", "false"]),
        ("OLLAMA_DEBUG", ["anything"]),
        ("PATH", ["abc"]),
    ],
)
def test_what_the_server_reads_is_no_fault(name: str, values: list[str]) -> None:
    assert {value: go_values.fault(name, value) for value in values} == dict.fromkeys(values, "")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        (NUMBER, ["abc", "-1", "+1", "4k", "4096.0", "1_000", "\u0664", "18446744073709551616"], "no whole number"),
        ("OLLAMA_MAX_QUEUE", ["many"], "no whole number"),
        (TIME, ["abc", "forever", "5 m", "5min", "1.5", "m", "1e3s"], "no duration, as 30m or -1"),
        ("OLLAMA_LOAD_TIMEOUT", ["xx"], "no duration"),
        (FLAG, ["off", "no", "yes", "2", "tRUE"], "neither 1 nor 0"),
        ("OLLAMA_LOAD_POLL_MS", ["0", "1001", "fast", " 20", "20ms"], "no whole number from 1 to 1000"),
        # The patches strip nothing.
        ("OLLAMA_SKIP_WARMUP", ["off", " 1", "'1'"], "neither 1 nor 0"),
    ],
)
def test_what_it_cannot_read_is_one(name: str, values: list[str], words: str) -> None:
    assert [value for value in values if not go_values.fault(name, value).startswith(words)] == []


def test_a_note_says_what_counts_instead() -> None:
    environ = {"OLLAMA_MAX_QUEUE": "x", NUMBER: "abc", TIME: "5m", FLAG: " ", "PATH": "y"}
    assert go_values.notes(environ, {NUMBER: "4096", TIME: "-1"}) == [
        "OLLAMA_CONTEXT_LENGTH='abc' is ignored, because it is no whole number, as 8192: the worker sets 4096",
        "OLLAMA_MAX_QUEUE='x' is ignored, because it is no whole number, as 8192: Ollama takes its own default",
    ]


def test_what_the_worker_sets_can_be_read() -> None:
    assert {s.name: go_values.fault(s.name, s.value) for s in settings({}) if go_values.fault(s.name, s.value)} == {}


def test_every_variable_the_patches_read_is_known() -> None:
    overlay = ROOT / "patches" / "overlay"
    read = {
        name for path in overlay.rglob("*.go") for name in re.findall(r'Getenv\("(OLLAMA_\w+)"\)', path.read_text())
    }
    # These two are off unless they are asked for; the configuration reads the first itself.
    for name in read - {"OLLAMA_SKIP_MMPROJ", "OLLAMA_DISABLE_MTP"}:
        assert go_values.fault(name, "nonsense"), name
