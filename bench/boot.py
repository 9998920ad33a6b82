"""`bench boot`: start of the container to the first chunk at the platform, against the floor and the stock order.

Clock: starts when the process is started (start.sh, the stock-order script, or the server alone); stops when the
queue has read the first chunk of a streamed chat, for the floor when the first token is read. One job waits in the
queue from the beginning. The page cache is warm. Rounds are interleaved, figures are medians of one run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import first_chunk, floor
from bench.first_chunk import MESSAGES, shareable, spread
from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.local.process import server_command, worker_environment
from worker.local.queue import LocalQueue

MODEL = "smollm2:135m"
STOCK_ORDER = (sys.executable, "-m", "bench.stock_order")


@dataclass(frozen=True)
class Round:
    """One round: seconds to the first chunk for the three ways, and the worker's raw output."""

    floor_s: float
    worker_s: float
    stock_s: float
    worker_lines: list[str]


def run(rounds: int, out: Path | None) -> int:
    """Measure `rounds` rounds, print the table, keep raw streams and result below `out`; return an exit code."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        register_gguf(home / "models", MODEL, smollm2_gguf())
        _round(home)  # fills the page cache and the bytecode caches
        measured = []
        for number in range(rounds):
            measured.append(_round(home))
            print(f"round {number + 1}/{rounds}: " + _line(measured[-1]), file=sys.stderr, flush=True)
    result = _result(measured)
    print(_table(result))
    if out is not None:
        _keep(out, home, result, measured)
    return 0


def _round(home: Path) -> Round:
    with LocalQueue() as queue:
        environ = worker_environment(queue, home=home, model=MODEL)
        floor_s = floor.measure(environ, MESSAGES).first_token_s
    worker = first_chunk.measure(home, MODEL)
    stock = first_chunk.measure(home, MODEL, command=STOCK_ORDER)
    return Round(floor_s, worker.first_chunk_s, stock.first_chunk_s, worker.lines)


def _result(rounds: list[Round]) -> dict[str, Any]:
    def figures(pick: Callable[[Round], float]) -> dict[str, float]:
        return spread([pick(r) for r in rounds])

    result: dict[str, Any] = {
        "measured": "start of the process to the first chunk at the platform",
        "server": "ollama" if "engine" not in server_command() else "local engine",
        "rounds": len(rounds),
        "floor": figures(lambda r: r.floor_s),
        "worker": figures(lambda r: r.worker_s),
        "stock_order": figures(lambda r: r.stock_s),
    }
    floor_s = result["floor"]["median_s"]
    result["worker_to_floor"] = round(result["worker"]["median_s"] / floor_s, 3)
    result["stock_order_to_floor"] = round(result["stock_order"]["median_s"] / floor_s, 3)
    return result


def _table(result: dict[str, Any]) -> str:
    rows = [f"{'':14}{'median':>9}{'min':>9}{'max':>9}{'÷ floor':>9}"]
    for name, ratio in (
        ("floor", 1.0),
        ("worker", result["worker_to_floor"]),
        ("stock_order", result["stock_order_to_floor"]),
    ):
        f = result[name]
        rows.append(f"{name:14}{f['median_s']:8.3f}s{f['min_s']:8.3f}s{f['max_s']:8.3f}s{ratio:9.2f}")
    return "\n".join([f"{result['measured']} ({result['server']}, {result['rounds']} rounds)", *rows])


def _line(r: Round) -> str:
    return f"floor {r.floor_s:.3f} s, worker {r.worker_s:.3f} s, stock order {r.stock_s:.3f} s"


def _keep(out: Path, home: Path, result: dict[str, Any], rounds: list[Round]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "boot.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for number, r in enumerate(rounds, start=1):
        (out / f"boot-{number}.jsonl").write_text("\n".join(shareable(r.worker_lines, home)) + "\n", encoding="utf-8")
