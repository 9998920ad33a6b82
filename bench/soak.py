"""`bench soak`: a worker under minutes of mixed work, and then whether it is what it was before.

Eight slots and more jobs than that at any time: whole and streamed, in every shape, of random length; one in eight
cannot work, one in ten is cancelled at a random moment, now and then the model is unloaded, and the platform refuses a
post or resets its connection. Afterwards threads, open files, sockets, children and asyncio tasks must be what they
were when the worker had done nothing yet, and memory must not have grown after the first quarter. Then the same over
many jobs that take no time. The server is the tests' fake one: what is looked for is what the worker keeps.
"""

from __future__ import annotations

import contextlib
import json
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.vitals import Vitals, look, resident_bytes
from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.local.process import ROOT, WorkerProcess, worker_environment
from worker.local.queue import RESET, Answer, Limits, LocalQueue

MODEL = "m"
SLOTS = 8
OUTSTANDING = 12
SEED = 20
# Shares of the jobs, and of the looks at them, a hundred a second.
BROKEN, UNLOADING, CANCELLED, FAULTS = 0.125, 0.005, 0.1, 0.02
SAMPLE_S = 5.0
LIMIT_S = 120.0
# Connections without work are closed after 15 s; a stop poll that is open is one more.
SETTLE_S = 60.0
MEMORY_STEPS = 10
# A worker's memory moves by this much with what the last jobs were.
SLACK_BYTES = 4 << 20
ENDS = {"COMPLETED", "FAILED", "CANCELLED"}
MESSAGES = [{"role": "user", "content": "hi"}]
BAD: list[Any] = [
    {},
    {"prompt": 5},
    {"prompt": "hi", "model": "absent"},
    {"messages": MESSAGES, "temperatur": 1},
    {"route": "/api/delete", "body": {"model": MODEL}},
    {"openai_route": "/v1/chat/completions", "openai_input": {"messages": MESSAGES, "model": "absent", "stream": True}},
    {"openai_route": "/v1/chat/completions", "openai_input": "{not json"},
]
UNLOAD = {"prompt": "", "keep_alive": 0}


@dataclass
class Stand:
    """A worker, its queue, and where it tells how many tasks it has."""

    queue: LocalQueue
    worker: WorkerProcess
    probe: Path

    def look(self) -> Vitals:
        """Look at the worker's process."""
        return look(self.worker.process.pid, self.probe)


@dataclass
class Load:
    """Jobs on their way, and how those before them ended."""

    queue: LocalQueue
    chance: random.Random
    running: dict[str, float] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)

    def step(self, *, more: bool) -> None:
        """Take in what has ended, cancel what is due, refill if there shall be `more`."""
        for job_id, cancel_s in list(self.running.items()):
            status = self.queue.status(job_id)["status"]
            if status in ENDS:
                del self.running[job_id]
                self.ended[status] += 1
            elif time.monotonic() > cancel_s:
                self.queue.cancel(job_id)
        while more and len(self.running) < OUTSTANDING:
            job_id = self.queue.submit(_job(self.chance))
            patience_s = self.chance.uniform(0.0, 1.0) if self.chance.random() < CANCELLED else LIMIT_S
            self.running[job_id] = time.monotonic() + patience_s
        if more and self.chance.random() < FAULTS:
            script = self.chance.choice([self.queue.faults.done, self.queue.faults.stream])
            script.add(self.chance.choice([RESET, Answer(500), Answer(429)]))


def run(out: Path | None, *, minutes: float = 10.0, jobs: int = 10_000) -> int:
    """Soak for `minutes`, then run `jobs` instant jobs; print and keep the result; return 1 if something is left."""
    with tempfile.TemporaryDirectory() as folder, _stand(Path(folder)) as stand:
        before = stand.look()
        result: dict[str, Any] = {
            "measured": "a worker with the tests' fake server, in one process of its own",
            "minutes": minutes,
            "slots": SLOTS,
            "before": asdict(before),
            "soak": _soak(stand, minutes * 60),
            "instant": _instant(stand, jobs),
            **_settled(stand, before),
        }
    print(_table(result))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "soak.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    flat = result["soak"]["memory_is_flat"] and result["instant"]["memory_is_flat"]
    return 0 if flat and not result["left_over"] else 1


@contextlib.contextmanager
def _stand(home: Path) -> Iterator[Stand]:
    register_gguf(home / "models", MODEL, smollm2_gguf())
    # The queue need not remember for hours, and a long memory would make it slow. Polls are held for longer than a
    # connection may be idle: short ones would keep several of them busy in turn, and no leak could be told from that.
    limits = Limits(run_retention_s=60.0, kept_calls=1000, ping_interval_s=2.0, take_hold_s=20.0, stop_hold_s=20.0)
    with LocalQueue(limits=limits) as queue:
        environ = worker_environment(
            queue,
            home=home,
            model=MODEL,
            MAX_CONCURRENCY=str(SLOTS),
            OLLAMA_NUM_PARALLEL=str(SLOTS),
            WORKER_SERVER_COMMAND=shlex.join([sys.executable, str(ROOT / "tests" / "fakes" / "server.py"), "serve"]),
            FAKE_MODELS=MODEL,
            FAKE_TOKENS="200",
            FAKE_TOKENS_PER_S="200",
            FAKE_LOAD_S="0.1",
            WATCHED_PROBE=str(home / "tasks"),
        )
        with WorkerProcess(environ, command=(sys.executable, "-m", "bench.watched")) as worker:
            worker.wait_event("loop.started", LIMIT_S)
            queue.record.wait_for(lambda record: record.takes() and record.stops() and record.pings(), LIMIT_S)
            yield Stand(queue, worker, home / "tasks")


def _soak(stand: Stand, limit_s: float) -> dict[str, Any]:
    load = Load(stand.queue, random.Random(SEED))  # noqa: S311 - the same jobs every time, no secret
    began_s = time.monotonic()
    samples: list[dict[str, Any]] = []
    while (now_s := time.monotonic() - began_s) < limit_s:
        load.step(more=True)
        if now_s >= len(samples) * min(SAMPLE_S, limit_s / 8):
            samples.append({"at_s": round(now_s, 1), **asdict(stand.look())})
        time.sleep(0.01)
    while load.running:
        load.step(more=False)
        time.sleep(0.01)
    quarter = len(samples) // 4
    resident = [sample["resident_bytes"] for sample in samples[quarter:]]
    halves = [statistics.mean(half) for half in (resident[: len(resident) // 2], resident[len(resident) // 2 :])]
    return {
        "jobs": dict(load.ended),
        "growth_bytes": round(halves[1] - halves[0]),
        "memory_is_flat": halves[1] - halves[0] < SLACK_BYTES,
        "samples": samples,
    }


def _instant(stand: Stand, jobs: int) -> dict[str, Any]:
    pid = stand.worker.process.pid
    resident, ended = [], Counter[str]()
    for _ in range(MEMORY_STEPS):
        ids = [
            stand.queue.submit({"messages": MESSAGES, "options": {"num_predict": 1}})
            for _ in range(jobs // MEMORY_STEPS)
        ]
        ended.update(stand.queue.wait(job_id, LIMIT_S)["status"] for job_id in ids)
        resident.append(resident_bytes(pid))
    # The first tenth fills pools and caches.
    growth = resident[-1] - resident[0]
    return {
        "jobs": dict(ended),
        "resident_bytes": resident,
        "growth_bytes_per_job": round(growth / (jobs * 0.9), 1),
        "memory_is_flat": growth < SLACK_BYTES,
    }


def _settled(stand: Stand, before: Vitals) -> dict[str, Any]:
    """Wait until the worker is what it was, or for as long as it may take."""
    deadline_s = time.monotonic() + SETTLE_S
    while (now := stand.look()).left_over(before) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return {"after": asdict(now), "left_over": now.left_over(before)}


def _job(chance: random.Random) -> Any:
    draw = chance.random()
    if draw < BROKEN:
        return chance.choice(BAD)
    if draw < BROKEN + UNLOADING:
        return UNLOAD
    tokens = int(chance.expovariate(1 / 40)) + 1
    native = {"messages": MESSAGES, "options": {"num_predict": tokens}}
    openai = {"messages": MESSAGES, "max_tokens": tokens}
    shapes: list[Callable[[], Any]] = [
        lambda: native,
        lambda: {**native, "stream": True},
        lambda: {"prompt": "hi", "options": {"num_predict": tokens}, "stream": True},
        lambda: {"route": "/api/chat", "body": {**native, "stream": True}},
        lambda: {"openai_route": "/v1/chat/completions", "openai_input": {**openai, "stream": True}},
        lambda: {"openai_route": "/v1/chat/completions", "openai_input": {**openai, "num_ctx": 512, "stream": True}},
        lambda: {"openai_route": "/v1/messages", "openai_input": {**openai, "stream": True}},
        lambda: {"openai_route": "/v1/models"},
    ]
    return chance.choice(shapes)()


def _table(result: dict[str, Any]) -> str:
    soak, instant = result["soak"], result["instant"]
    rows = [f"{'':14}{'before':>14}{'after':>14}"]
    rows += [f"{name:14}{result['before'][name]:>14,}{result['after'][name]:>14,}" for name in result["before"]]
    told = ", ".join(f"{count} {end}" for end, count in sorted(soak["jobs"].items()))
    rows.append(f"soak: {told} in {result['minutes']:g} minutes, memory {soak['growth_bytes'] / 1e6:+.2f} MB")
    count = sum(instant["jobs"].values())
    rows.append(f"instant: {count} jobs, memory {instant['growth_bytes_per_job']:+.1f} bytes a job")
    if result["left_over"]:
        rows.append(f"left over: {result['left_over']}")
    return "\n".join(rows)
