"""`bench landing`: a model file into memory by landing it, against what llama.cpp does alone, side by side.

Clock: starts when the file is known; stops when every byte of it is mapped as llama.cpp maps it, from the copy if one
was landed, else from where it lies. Each round reads both ways, in alternating order, each in a process of its own,
with the file's page cache dropped before unless the case says otherwise. Figures are medians; a ratio above 1 means
that the worker is faster. Where the machine's cores may be the limit, the same reads are also taken without writing a
copy: the ratio that no landing can exceed.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import latfuse, moosefs, random_gguf
from bench.held_memory import held
from bench.programs import Unavailable
from worker.storage import cached_share

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m worker bench landing"
SIZE_BYTES = 2 << 30
LIMIT_S = 300.0
# What a filesystem's client keeps of what it reads ahead, beside the file itself.
CLIENT_BYTES = 512 << 20


@dataclass(frozen=True)
class Case:
    """One filesystem in one state; `goal` is the ratio it is to reach. `opened` yields the model file on it.

    `how` is how a model is read at last (bench.llama_read). `bounded` asks for the ratio without writing as well.
    """

    group: str
    name: str
    goal: float
    opened: Callable[[Path], AbstractContextManager[Path]]
    cold: bool = True
    how: str = "mapped"
    bounded: bool = False


@contextlib.contextmanager
def _fuse(folder: Path, latency_us: int) -> Iterator[Path]:
    program = latfuse.build(folder)
    with latfuse.LatencyFuse(program, folder / "models", folder / "fuse", latency_us=latency_us) as fuse:
        yield fuse.mount / "model.gguf"


@contextlib.contextmanager
def _moosefs(folder: Path, rtt_ms: float) -> Iterator[Path]:
    link = moosefs.build(folder)
    cluster = folder / "moosefs"
    if not cluster.exists():
        # Filled without a delay, once: the files outlive the link.
        with moosefs.MooseFs(link, cluster, rtt_ms=0) as filled:
            shutil.copyfile(folder / "models" / "model.gguf", filled.mounts[0] / "model.gguf")
    with moosefs.MooseFs(link, cluster, rtt_ms=rtt_ms) as running:
        yield running.mounts[0] / "model.gguf"


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[Path]:
    yield folder / "models" / "model.gguf"


def _at(opened: Callable[[Path, Any], AbstractContextManager[Path]], value: float) -> Any:
    return lambda folder: opened(folder, value)


CASES = (
    Case("fuse", "FUSE, 0.5 ms per request", 1.0, _at(_fuse, 500)),
    Case("fuse", "FUSE, 2 ms per request", 5.0, _at(_fuse, 2000)),
    Case("fuse", "FUSE, 5 ms per request", 10.0, _at(_fuse, 5000)),
    Case("moosefs", "MooseFS, RTT 0 ms", 1.15, _at(_moosefs, 0.0), bounded=True),
    Case("moosefs", "MooseFS, RTT 2 ms", 1.15, _at(_moosefs, 2.0), bounded=True),
    Case("moosefs", "MooseFS, RTT 10 ms", 1.15, _at(_moosefs, 10.0), bounded=True),
    Case("cached", "FUSE, in the page cache", 0.95, _at(_fuse, 2000), cold=False),
    Case("cached", "local disk, in the page cache", 0.95, _disk, cold=False),
    Case("disk", "local disk", 0.95, _disk),
    Case("libllama", "FUSE, 2 ms per request, loaded by libllama", 3.0, _at(_fuse, 2000), how="libllama"),
    Case("libllama", "local disk, loaded by libllama", 0.95, _disk, how="libllama"),
)
GROUPS = tuple(dict.fromkeys(case.group for case in CASES))


def run(out: Path | None, *, size_bytes: int = SIZE_BYTES, rounds: int = 3, which: Sequence[str] = GROUPS) -> int:
    """Measure the groups `which`, print the table, keep each case's figures below `out`; return an exit code."""
    rows = []
    # Beside the landed copies, so on disk wherever the machine keeps its temporary files.
    with tempfile.TemporaryDirectory(prefix="landing.") as name:
        folder = Path(name)
        (folder / "models").mkdir()
        random_gguf.write(folder / "models" / "model.gguf", size_bytes)
        os.sync()
        for case in CASES:
            if case.group in which:
                rows.append(_result(case, folder, rounds))
                print(_line(rows[-1]), flush=True)
                if out is not None:
                    _keep(out, case, rows[-1])
    return 0


def _result(case: Case, folder: Path, rounds: int) -> dict[str, Any]:
    source = folder / "models" / "model.gguf"
    result: dict[str, Any] = {
        "case": case.name,
        "goal": case.goal,
        "command": f"{COMMAND} --rounds {rounds} --only {case.group}",
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}",
        "file_bytes": source.stat().st_size,
    }
    try:
        with case.opened(folder) as path:
            measured = _rounds(case, path, folder, rounds)
    except Unavailable as exc:
        return {**result, "not_run": str(exc)}
    medians = {way: statistics.median(taken[way]["took_s"] for taken in measured) for way in measured[0]}
    ratios = {way: round(medians["llama_alone"] / took_s, 2) for way, took_s in medians.items()}
    return {
        **result,
        **{f"{way}_s": took_s for way, took_s in medians.items()},
        "ratio": ratios["worker"],
        **({"bound": ratios["thrown_away"]} if case.bounded else {}),
        # What the worker adds before the reading when it decides to read in place.
        "before_reading_s": statistics.median(taken["worker"]["near_s"] for taken in measured),
        "method": measured[-1]["worker"]["method"],
        "rounds": measured,
    }


def _rounds(case: Case, path: Path, folder: Path, rounds: int) -> list[dict[str, dict[str, Any]]]:
    """Return for each round what llama.cpp alone and the worker took; a first round is not counted."""
    found = []
    landed = folder / "landed"
    ways: dict[str, tuple[str, Path | None]] = {"llama_alone": (case.how, None), "worker": (case.how, landed)}
    if case.bounded:
        ways["thrown_away"] = ("thrown-away", None)
    _once(case, path, case.how, landed)
    for number in range(rounds):
        order = list(ways) if number % 2 else list(reversed(ways))
        taken = {way: _once(case, path, *ways[way]) for way in order}
        found.append({way: taken[way] for way in ways})
        print(f"  {case.name}: {found[-1]}", file=sys.stderr, flush=True)
    return found


def _once(case: Case, path: Path, how: str, folder: Path | None) -> dict[str, Any]:
    _prepare(path, cold=case.cold)
    command = [sys.executable, "-m", "bench.llama_read", str(path), "--how", how]
    command += ["--folder", str(folder)] if folder is not None else []
    try:
        with held(path.stat().st_size + CLIENT_BYTES, Path(tempfile.gettempdir())):
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _prepare(path: Path, *, cold: bool) -> None:
    """Take the file out of the page cache, or bring it in."""
    with path.open("rb") as file:
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        elif cached_share(path) < 1:
            while file.read(4 << 20):
                pass


def _line(row: dict[str, Any]) -> str:
    if "not_run" in row:
        return f"{row['case']:44} not run: {row['not_run']}"
    verdict = "reached" if row["ratio"] >= row["goal"] else "missed"
    bound = f"; {row['bound']:.2f} x without writing" if "bound" in row else ""
    return (
        f"{row['case']:44}{row['llama_alone_s']:8.2f} s{row['worker_s']:8.2f} s{row['ratio']:8.2f} x"
        f"  (goal {row['goal']:g} x {verdict}{bound}; {row['method']})"
    )


def _keep(out: Path, case: Case, row: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    name = "-".join("".join(c if c.isalnum() or c == "." else " " for c in case.name.lower()).split())
    (out / f"{name}.json").write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
