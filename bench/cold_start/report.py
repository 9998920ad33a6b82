"""What the runs came to: figures for each rung, kept with the raw streams they come from."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.cold_start import host, picture, rungs, store
from bench.cold_start.options import Options
from bench.cold_start.runs import Bench, Measured, measure
from bench.cold_start.store import ColdStore, NoModel
from bench.first_chunk import Start, shareable, spread
from bench.programs import Unavailable

CLOCK = "start of the process to the first chunk of a streamed chat at the platform"


def run(options: Options) -> int:
    """Measure every rung that can be, print the table, keep result, picture and raw streams below `options.out`."""
    unknown = [name for name in options.which if name not in rungs.NAMES]
    if unknown or options.runs < 1:
        wrong = f"there are {', '.join(rungs.NAMES)}, not {', '.join(unknown)}" if unknown else "--runs is below 1"
        print(f"not run: {wrong}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="cold-start.") as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        try:
            opened = store.opened(home, options.models, options.model, options.latency_us)
            found = stack.enter_context(opened)
        except (NoModel, Unavailable) as exc:
            print(f"not run: {exc}", file=sys.stderr)
            return 1
        all_measured = measure(Bench(home, found, options))
        result = _result(options, found, all_measured)
        print(picture.table(result))
        if options.out is not None:
            _keep(options.out, home, result, all_measured)
    return 0 if any(measured.starts for measured in all_measured) else 1


def _result(options: Options, found: ColdStore, measured: list[Measured]) -> dict[str, Any]:
    devices = host.devices(os.environ)
    return {
        "measured": CLOCK,
        "command": options.command,
        "machine": ", ".join([f"{os.cpu_count()} cores", f"Linux {platform.release()}", devices or "no NVIDIA device"]),
        "on_gpu": bool(devices),
        "server": _server([start for one in measured for start in one.starts]),
        "model": found.model.name.short,
        "model_bytes": found.model.size_bytes,
        "store": found.described,
        "page_cache": "without the model" if options.cold or options.latency_us else "warm",
        "runs": options.runs,
        "rungs": [_row(one) for one in measured],
    }


def _row(measured: Measured) -> dict[str, Any]:
    step = measured.step
    shown = {name: "DIR" if value.startswith("/") else value for name, value in step.settings.items()}
    row: dict[str, Any] = {
        "number": step.number,
        "rung": step.rung.name,
        "title": step.rung.title,
        "settings": shown,
        "withheld": list(step.withheld),
    }
    if step.obstacle or not measured.starts:
        return {**row, "not_run": step.obstacle or f"no run came to a first chunk: {measured.failures[-1]:.200}"}
    row |= {"first_chunk": spread([start.first_chunk_s for start in measured.starts])}
    row |= {"runs_s": [round(start.first_chunk_s, 3) for start in measured.starts], "failed": measured.failures}
    speeds = [start.speeds for start in measured.starts if start.speeds is not None]
    if speeds:
        row["prefill_tokens_per_s"] = spread([one.prefill_per_s for one in speeds], 1, "")
        row["decode_tokens_per_s"] = spread([one.decode_per_s for one in speeds], 1, "")
    return row


def _server(starts: list[Start]) -> str:
    """Return the server's name and the version it told a worker."""
    name = "ollama" if host.is_ollama() else "local engine"
    return " ".join([name, *sorted({version for start in starts for version in _versions(start)})])


def _versions(start: Start) -> Iterator[str]:
    for line in start.lines:
        if '"server.answered"' in line and line.startswith("{"):
            yield str(json.loads(line)["version"])


def _keep(out: Path, home: Path, result: dict[str, Any], all_measured: list[Measured]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "cold-start.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (out / "cold-start.txt").write_text(picture.table(result) + "\n", encoding="utf-8")
    (out / "cold-start.svg").write_text(picture.picture(result), encoding="utf-8")
    for measured in all_measured:
        for stale in out.glob(f"{measured.step.number}-{measured.step.rung.name}-*.jsonl"):
            stale.unlink()
        for number, start in enumerate(measured.starts, start=1):
            # A start in the stock order has no events of ours: what the queue saw is all there is.
            lines = shareable(start.lines, home) or [json.dumps({"first_chunk_s": round(start.first_chunk_s, 3)})]
            name = f"{measured.step.number}-{measured.step.rung.name}-{number}.jsonl"
            (out / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
