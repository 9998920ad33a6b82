"""Ctrl-C at the terminal of a measurement: whatever it had started is gone, and one line says so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from worker.local.process import ROOT, wait_for

LIMIT_S = 90.0
# The commands as they are, with files small enough for a test.
COMMAND = """
import runpy, sys
from bench import landing, transfer
for measure in (landing, transfer):
    measure.run.__kwdefaults__["size_bytes"] = 64 << 20
runpy.run_module("worker", run_name="__main__", alter_sys=True)
"""
BENCHES = {
    "cold-start": ("--runs 2 --rungs stock", "worker.local.engine serve"),
    "boot": ("--rounds 1", "worker.local.engine serve"),
    "proxy": ("--rounds 1 --jobs 10", "bench.emitter"),
    "soak": ("--minutes 1 --jobs 10", "fakes/server.py serve"),
    "transfer": ("--rounds 1", "bench.held_memory"),
    "landing": ("--rounds 1 --only disk", "bench.held_memory"),
}


def started_by(pid: int) -> dict[psutil.Process, str]:
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found[process] = " ".join(process.cmdline())
    return found


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("bench", BENCHES)
def test_an_interrupted_bench_leaves_nothing_and_says_one_line(tmp_path: Path, bench: str) -> None:
    options, awaited = BENCHES[bench]
    temporary, said = tmp_path / "temporary", tmp_path / "said"
    temporary.mkdir()
    seen: dict[psutil.Process, str] = {}
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "bench", bench, *options.split()],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # As a shell has it: a process group of its own, which gets the signal as a whole.
            start_new_session=True,
        )

    def is_there() -> bool:
        assert process.poll() is None, said.read_text()
        seen.update(started_by(process.pid))
        return any(awaited in command for command in seen.values())

    try:
        assert wait_for(is_there, LIMIT_S)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert wait_for(lambda: not living(list(seen)), 5.0), [seen[left] for left in living(list(seen))]
    finally:
        for left in [*living(list(seen)), process]:
            left.kill()
        process.wait(LIMIT_S)
    assert said.read_text().splitlines()[-2:] == ["", "Interrupted; nothing is left running."]
    assert "Traceback" not in said.read_text()
    # What workers show their servers is in one folder for all of them.
    assert [left for left in temporary.rglob("*") if not left.name.startswith("worker-views-")] == []
