"""`bench leases`: does a lease hold on a network filesystem? Races between real processes on two mounts of one MooseFS.

Each round several processes wait for the same moment and try once to get a lease that a dead holder has left, or a free
one. A round is good when exactly one gets it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import moosefs
from bench.programs import Unavailable
from worker.lease import Lease

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m worker bench leases"
PROCESSES = 3
TERM_S = 10.0
RACER = """
import sys
from pathlib import Path
from worker.lease import Lease
print("ready", flush=True)
for line in sys.stdin:
    print("won" if Lease.acquire(Path(line.strip()), term_s=10) else "lost", flush=True)
"""


def run(out: Path | None, *, rounds: int = 20, rtt_ms: float = 1.0) -> int:
    """Race `rounds` times for free leases and as often for stale ones; return 1 when any round had another winner."""
    result: dict[str, Any] = {"case": "leases on two mounts of one MooseFS", "command": f"{COMMAND} --rounds {rounds}"}
    with tempfile.TemporaryDirectory(prefix="leases.") as name:
        folder = Path(name)
        try:
            with moosefs.MooseFs(moosefs.build(folder), folder / "moosefs", rtt_ms=rtt_ms, mounts=2) as running:
                result |= _races(running.mounts, rounds, rtt_ms)
        except Unavailable as exc:
            result["not_run"] = str(exc)
    print(json.dumps(result, indent=2))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "moosefs-leases.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(bool(result.get("free", {}).get("bad_rounds") or result.get("stale", {}).get("bad_rounds")))


def _races(mounts: Sequence[Path], rounds: int, rtt_ms: float) -> dict[str, Any]:
    found: dict[str, Any] = {"rtt_ms": rtt_ms, "mounts": len(mounts), "processes": PROCESSES * len(mounts)}
    with contextlib.ExitStack() as stack:
        racers = [(mount, stack.enter_context(_racer())) for mount in mounts for _ in range(PROCESSES)]
        for kind in ("free", "stale"):
            winners, longest_s = [], 0.0
            for number in range(rounds):
                if kind == "stale":
                    _leave_stale(mounts[0] / f"{kind}{number}")
                began_s = time.monotonic()
                winners.append(_race(racers, f"{kind}{number}"))
                longest_s = max(longest_s, time.monotonic() - began_s)
            bad = sum(count != 1 for count in winners)
            found[kind] = {"rounds": rounds, "bad_rounds": bad, "longest_round_ms": round(longest_s * 1000, 1)}
    return found


@contextlib.contextmanager
def _racer() -> Any:
    command = [sys.executable, "-c", RACER]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            _answer(process)
            yield process
        finally:
            process.kill()


def _race(racers: Sequence[tuple[Path, subprocess.Popen[str]]], name: str) -> int:
    """Return how many of `racers` got the lease `name`."""
    for mount, process in racers:
        if process.stdin is None:
            raise RuntimeError("a racer without an input")
        process.stdin.write(f"{mount / name}\n")
        process.stdin.flush()
    return sum(_answer(process) == "won" for _, process in racers)


def _answer(process: subprocess.Popen[str]) -> str:
    if process.stdout is None:
        raise RuntimeError("a racer without an output")
    return process.stdout.readline().strip()


def _leave_stale(path: Path) -> None:
    """Leave a lease as a process that was killed a term ago would."""
    if Lease.acquire(path, term_s=TERM_S) is None:
        raise RuntimeError(f"{path.name} is held already")
    old_s = path.stat().st_mtime - TERM_S - 5
    os.utime(path, (old_s, old_s))
