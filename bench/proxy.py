"""`bench proxy`: what the worker costs between the server and the platform, against the server asked directly.

Throughput: tokens a second of each stream from its first token to its last, summed, through the worker, divided by the
same asked of the server itself; the server emits 2000 tokens a second and stream, so that what is measured is the way.
First token: median of single streams, less the server's own. Instant jobs: answers without a token to wait for, on
one slot. Memory: resident bytes of the worker over many jobs. Processor time is the worker's alone: where a machine has
other work, throughput with many streams shows what was left, and this what was needed. All in one run, in interleaved
rounds; a ratio is the median of the rounds' ratios. The queue runs in the measuring process, in the platform's place.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import streams
from bench.streams import Taken
from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.local.process import WorkerProcess, free_port, worker_environment
from worker.local.queue import LocalQueue

MODEL = "m"
SPEED = 2000
TOKENS = 2 * SPEED
STREAMS = (1, 8, 32)
# A real model on two cores: fewer streams, and a text it answers with that many tokens.
REAL_STREAMS, REAL_TOKENS = (1, 8), 100
REAL_TEXT = "Tell me a long story about a lighthouse, a storm and a ship that is late."
FIRST_TOKENS = 40
INSTANT_JOBS = 200
MEMORY_STEPS = 10
LIMIT_S = 300.0
Ask = Callable[[int, int], Taken]


@dataclass(frozen=True)
class Way:
    """One way through a worker, the same asked of the server directly, and the worker's process id."""

    name: str
    direct: Ask
    through: Ask
    pid: int


@dataclass(frozen=True)
class Stand:
    """What is measured: the ways through two workers, one with a single slot, and one that has done nothing yet.

    What streams leave unused would hide what jobs keep, and a queue that remembers thousands of jobs is slow.
    """

    ways: list[Way]
    one_slot: LocalQueue
    fresh: LocalQueue
    fresh_pid: int


def run(out: Path | None, *, rounds: int = 5, jobs: int = 10_000) -> int:
    """Measure `rounds` rounds and the memory of `jobs` jobs, print the result and keep it below `out`."""
    with tempfile.TemporaryDirectory() as folder, _stand(Path(folder)) as stand:
        result: dict[str, Any] = {
            "measured": "through the worker, against the server itself",
            "rounds": rounds,
            "tokens_per_s_and_stream": SPEED,
            "throughput": _throughput(stand, rounds) + _real_throughput(Path(folder), rounds),
            "first_token": _first_token(stand),
            "instant_jobs_per_s": _instant(stand.one_slot, rounds),
            "memory": _memory(stand, jobs),
        }
    print(_table(result))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "proxy.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


@contextlib.contextmanager
def _stand(home: Path) -> Iterator[Stand]:
    register_gguf(home / "models", MODEL, smollm2_gguf())
    port = free_port()
    with contextlib.ExitStack() as stack:
        queue, one_slot, fresh = (stack.enter_context(LocalQueue()) for _ in range(3))

        def start(jobs_of: LocalQueue, slots: int, **settings: str) -> tuple[WorkerProcess, str]:
            command = f"{sys.executable} -m bench.emitter"
            environ = worker_environment(
                jobs_of,
                home=home,
                model=MODEL,
                WORKER_SERVER_COMMAND=command,
                EMITTER_TOKENS_PER_S=str(SPEED),
                MAX_CONCURRENCY=str(slots),
                **settings,
            )
            worker = stack.enter_context(WorkerProcess(environ))
            worker.wait_event("loop.started", LIMIT_S)
            return worker, f"http://{environ['OLLAMA_HOST']}"

        worker, direct = start(queue, max(STREAMS))
        start(one_slot, 1)
        unused, _ = start(fresh, 8)
        gateway, _ = start(queue, max(STREAMS), WORKER_MODE="load_balancer", PORT=str(port))
        native, openai = (_http(direct, openai=openai) for openai in (False, True))
        ways = [
            Way("queue, native", native, _jobs(queue, openai=False), worker.process.pid),
            Way("queue, OpenAI", openai, _jobs(queue, openai=True), worker.process.pid),
            Way("gateway, native", native, _http(f"http://127.0.0.1:{port}", openai=False), gateway.process.pid),
        ]
        yield Stand(ways, one_slot, fresh, unused.process.pid)


def _http(url: str, *, openai: bool) -> Ask:
    return lambda n, tokens: streams.over_http(url, n, tokens, openai=openai)


def _jobs(queue: LocalQueue, *, openai: bool) -> Ask:
    return lambda n, tokens: streams.over_queue(queue, n, tokens, openai=openai)


def _throughput(stand: Stand, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for count in STREAMS:
        for way in stand.ways:
            row = _ratio(way, count, rounds)
            rows.append(row)
            print(f"{count:3} streams, {way.name}: {row['ratio']:.3f}", file=sys.stderr, flush=True)
    return rows


def _real_throughput(home: Path, rounds: int) -> list[dict[str, Any]]:
    """Measure the queue's way to a server with a model: the engine, or the Ollama that OLLAMA_BIN names.

    The model gets one thread: on a CPU it would otherwise compute on the core the worker needs, which no GPU does.
    """
    slots = max(REAL_STREAMS)
    with LocalQueue() as queue:
        environ = worker_environment(
            queue,
            home=home,
            model=MODEL,
            OLLAMA_NUM_PARALLEL=str(slots),
            MAX_CONCURRENCY=str(slots),
            LLAMA_ARG_THREADS="1",
        )
        with WorkerProcess(environ) as worker:
            worker.wait_event("loop.started", LIMIT_S)
            url = f"http://{environ['OLLAMA_HOST']}"
            way = Way(
                "queue, real model",
                lambda n, tokens: streams.over_http(url, n, tokens, openai=False, text=REAL_TEXT),
                lambda n, tokens: streams.over_queue(queue, n, tokens, openai=False, text=REAL_TEXT),
                worker.process.pid,
            )
            return [_ratio(way, count, rounds, REAL_TOKENS) for count in REAL_STREAMS]


def _ratio(way: Way, count: int, rounds: int, tokens: int = TOKENS) -> dict[str, Any]:
    way.through(count, 10)
    direct, ratios, used_us = [], [], []
    for _ in range(rounds):
        direct.append(way.direct(count, tokens).tokens_per_s(tokens))
        before_s = _processor_s(way.pid)
        ratios.append(way.through(count, tokens).tokens_per_s(tokens) / direct[-1])
        used_us.append((_processor_s(way.pid) - before_s) / (count * tokens) * 1e6)
    return {
        "way": way.name,
        "streams": count,
        "direct_tokens_per_s": round(statistics.median(direct)),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "processor_us_per_token": round(statistics.median(used_us), 2),
    }


def _first_token(stand: Stand) -> list[dict[str, Any]]:
    rows = []
    for way in stand.ways:
        pairs = [(way.direct(1, 1).first_s[0], way.through(1, 1).first_s[0]) for _ in range(FIRST_TOKENS)]
        own_ms, through_ms = (statistics.median(pair[at] for pair in pairs) * 1000 for at in (0, 1))
        rows.append(
            {
                "way": way.name,
                "direct_ms": round(own_ms, 2),
                "through_ms": round(through_ms, 2),
                "added_ms": round(statistics.median((b - a) * 1000 for a, b in pairs), 2),
            }
        )
    return rows


def _instant(queue: LocalQueue, rounds: int) -> dict[str, float]:
    rates = []
    for _ in range(rounds + 1):
        began_s = time.monotonic()
        for job_id in [queue.submit(_instant_job()) for _ in range(INSTANT_JOBS)]:
            queue.wait(job_id, LIMIT_S)
        rates.append(INSTANT_JOBS / (time.monotonic() - began_s))
    # The first round opens the connections.
    return {"median": round(statistics.median(rates[1:]), 1), "min": round(min(rates[1:]), 1)}


def _memory(stand: Stand, jobs: int) -> dict[str, Any]:
    resident = []
    for _ in range(MEMORY_STEPS):
        for job_id in [stand.fresh.submit(_instant_job()) for _ in range(jobs // MEMORY_STEPS)]:
            stand.fresh.wait(job_id, LIMIT_S)
        resident.append(_resident_bytes(stand.fresh_pid))
    # The first tenth fills pools and caches.
    growth = resident[-1] - resident[0]
    return {"jobs": jobs, "resident_bytes": resident, "growth_bytes_per_job": round(growth / (jobs * 0.9), 1)}


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def _processor_s(pid: int) -> float:
    # The name in parentheses may hold spaces; user and system time are the 12th and 13th field after it.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _instant_job() -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": streams.TEXT}], "options": {"num_predict": 1}}


def _table(result: dict[str, Any]) -> str:
    rows = [f"{'':18}{'streams':>8}{'ratio':>8}{'min':>8}{'max':>8}{'us/token':>10}"]
    rows += [
        f"{r['way']:18}{r['streams']:8}{r['ratio']:8.3f}{r['ratio_min']:8.3f}{r['ratio_max']:8.3f}"
        f"{r['processor_us_per_token']:10.2f}"
        for r in result["throughput"]
    ]
    rows += [f"first token, {r['way']}: {r['added_ms']:.2f} ms added" for r in result["first_token"]]
    memory = result["memory"]
    rows.append(f"instant jobs on one slot: {result['instant_jobs_per_s']['median']:.0f} a second")
    rows.append(f"memory over {memory['jobs']} jobs: {memory['growth_bytes_per_job']:+.1f} bytes a job")
    return "\n".join(rows)
