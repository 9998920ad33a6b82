"""The soak in miniature: real jobs of every kind, and what is left over is seen."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import soak, vitals
from bench.vitals import Vitals
from worker.local.process import wait_for

LIMIT_S = 60.0
# Does what it is told on its input, and tells as many tasks as it has seen lines.
HOLDER = """
import os, pathlib, signal, socket, subprocess, sys, threading
probe, held, seen = pathlib.Path(sys.argv[1]), [], 0
def tell(*_):
    half = probe.with_suffix(".half")
    half.write_text(str(seen))
    half.replace(probe)
signal.signal(signal.SIGUSR1, tell)
print("ready", flush=True)
for line in sys.stdin:
    seen += 1
    if line == "socket\\n":
        held.append(socket.socket())
    elif line == "file\\n":
        held.append(open(os.devnull))
    elif line == "thread\\n":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    elif line == "child\\n":
        held.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    print("done", flush=True)
"""


def test_a_worker_is_what_it_was_after_mixed_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    out = tmp_path / "results"
    assert soak.run(out, minutes=0.08, jobs=200) == 0
    text = (out / "soak.json").read_text()
    result = json.loads(text)
    assert result["left_over"] == {}
    ends = result["soak"]["jobs"]
    assert set(ends) <= soak.ENDS
    assert min(ends["COMPLETED"], ends["FAILED"]) > 3
    assert result["instant"]["jobs"] == {"COMPLETED": 200}
    samples = result["soak"]["samples"]
    assert len(samples) >= 4
    # It was at work while it was looked at.
    assert max(sample["tasks"] for sample in samples) > result["before"]["tasks"] + 3
    assert max(sample["sockets"] for sample in samples) > result["before"]["sockets"]
    assert str(tmp_path) not in text
    assert list(tmp_path.iterdir()) == [out]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Callable[[str], Vitals]]:
    """Return what a process holds after it was told to take one thing more."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "probe")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"

        def take(kind: str) -> Vitals:
            process.stdin.write(f"{kind}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            return vitals.look(process.pid, tmp_path / "probe")

        yield take
        process.stdin.close()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("nothing", {"tasks": 1}),
        ("file", {"tasks": 1, "files": 1}),
        ("socket", {"tasks": 1, "files": 1, "sockets": 1}),
        ("thread", {"tasks": 1, "threads": 1}),
        ("child", {"tasks": 1, "files": 1, "children": 1}),
    ],
)
def test_what_is_left_over_is_seen(held: Callable[[str], Vitals], kind: str, more: dict[str, int]) -> None:
    before = held("nothing")
    after = held(kind)
    assert after.left_over(before) == more
    assert before.left_over(after) == {}
    assert after.resident_bytes > 1_000_000


def test_a_process_that_does_not_answer_is_no_clean_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "LIMIT_S", 0.2)
    code = "import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(TimeoutError, match="does not answer"):
            vitals.look(process.pid, tmp_path / "probe")
        process.kill()
    assert wait_for(lambda: process.poll() is not None, LIMIT_S)
