"""One cold start: a process with a job waiting for it, from its start to the first chunk at the platform."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.local.process import ROOT, WorkerProcess, worker_environment
from worker.local.queue import LocalQueue

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
START = (str(ROOT / "start.sh"),)
LIMIT_S = 120.0
# Some 600 tokens in, 64 out: enough for a speed, little beside a cold start.
_SPEED_PROMPT = " ".join(f"Item {number} of the list weighs {number * 37 % 101} kg." for number in range(50))
_SPEED_TOKENS = 64
_OF_THE_MACHINE = ("argv", "path", "store")


class NotStarted(Exception):
    """The process ended, its job failed, or nothing came in time; the message says which."""


@dataclass(frozen=True)
class Speeds:
    """Tokens a second of a job after the first one, by the server's own count."""

    prefill_per_s: float
    decode_per_s: float


@dataclass(frozen=True)
class Start:
    """One start: seconds to the first chunk, everything the process printed, and its speeds when asked for."""

    first_chunk_s: float
    lines: list[str]
    speeds: Speeds | None = None


def measure(
    home: Path,
    model: str,
    *,
    command: Sequence[str] = START,
    limit_s: float = LIMIT_S,
    speeds: bool = False,
    until: str = "",
    **settings: str,
) -> Start:
    """Start `command` with `settings` in its environment and take the first chunk of a streamed chat from it.

    It is ended after that, after one more job when `speeds` are asked for, and not before its event `until`.

    Raises:
        NotStarted: there was none within `limit_s` seconds.
    """
    with LocalQueue() as queue:
        job_id = queue.submit(_job(MESSAGES, tokens=8))
        environ = worker_environment(queue, home=home, model=model, **settings)
        worker = WorkerProcess(environ, command=tuple(command))
        began_s = time.monotonic()
        with worker:
            first_s = _first(queue, worker, job_id, limit_s) - began_s
            queue.wait(job_id, limit_s)
            measured = _speeds(queue, limit_s) if speeds else None
            if until:
                worker.wait_event(until, limit_s)
        return Start(first_s, worker.lines, measured)


def spread(values: Sequence[float], digits: int = 3, unit: str = "_s") -> dict[str, float]:
    """Return median, least and most of some values, as results keep them."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {f"{name}{unit}": round(value, digits) for name, value in found.items()}


def shareable(lines: Sequence[str], home: Path) -> list[str]:
    """Return the events of a run without what belongs to the machine it was taken on: its paths and server's log."""
    kept = []
    for line in lines:
        if line.startswith('{"at_ns"'):
            record = {name: value for name, value in json.loads(line).items() if name not in _OF_THE_MACHINE}
            if record["event"] != "server.logged":
                kept.append(json.dumps(record, separators=(",", ":")).replace(str(home), "HOME"))
    return kept


def _job(messages: list[dict[str, str]], tokens: int) -> dict[str, Any]:
    return {"messages": messages, "stream": True, "options": {"temperature": 0, "num_predict": tokens}}


def _first(queue: LocalQueue, worker: WorkerProcess, job_id: str, limit_s: float) -> float:
    """Return when the first chunk was there, on the monotonic clock."""

    def settled(record: Any) -> bool:
        return bool(record.chunks(job_id) or record.dones(job_id)) or worker.process.poll() is not None

    try:
        queue.record.wait_for(settled, limit_s)
    except TimeoutError as exc:
        raise NotStarted(f"no chunk within {limit_s:g} s") from exc
    chunks = queue.record.chunks(job_id)
    if chunks:
        return float(chunks[0].at_s)
    if worker.process.poll() is None:
        raise NotStarted(f"the job failed: {queue.status(job_id).get('error', 'without a word')!s:.300}")
    worker.wait()
    told = [str(record["message"]) for record in worker.records if record["event"] == "boot.failed"]
    raise NotStarted((told or [line for line in worker.lines if line.strip()] or ["the process ended silently"])[-1])


def _speeds(queue: LocalQueue, limit_s: float) -> Speeds | None:
    """Run one more job and return its speeds, or None when the server does not tell them."""
    job_id = queue.submit(_job([{"role": "user", "content": _SPEED_PROMPT}], _SPEED_TOKENS))
    output = queue.wait(job_id, limit_s).get("output")
    for piece in reversed(output if isinstance(output, list) else []):
        last = json.loads(piece) if isinstance(piece, str) else piece
        if last.get("eval_duration") and last.get("prompt_eval_duration"):
            return Speeds(
                last["prompt_eval_count"] / last["prompt_eval_duration"] * 1e9,
                last["eval_count"] / last["eval_duration"] * 1e9,
            )
    return None
