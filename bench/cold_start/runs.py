"""The runs of every rung, interleaved: each in a container of its own as far as the worker can tell."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench import first_chunk
from bench.boot import STOCK_ORDER
from bench.cold_start import host, rungs
from bench.cold_start.options import Options
from bench.cold_start.rungs import Step
from bench.cold_start.store import ColdStore
from bench.first_chunk import NotStarted, Start
from worker.environment import BACKEND_VARIABLE
from worker.local.process import server_command


@dataclass
class Measured:
    """The runs of one rung: starts, and the words of those that never came to a first chunk."""

    step: Step
    starts: list[Start] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """Where runs take place: a folder that goes with the bench, the store, what was asked."""

    home: Path
    store: ColdStore
    options: Options

    def run(self, measured: Measured, *, speeds: bool = True, until: str = "") -> None:
        """Start once on a rung and keep what came of it."""
        rung = measured.step.rung
        with contextlib.ExitStack() as stack:
            container = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="container.", dir=self.home)))
            settings = {
                **host.inherited(os.environ),
                **measured.step.settings,
                "HOME": str(container),
                "OLLAMA_MODELS": str(self.store.models),
                "WORKER_VOLUME": str((self.home if rung.keeps_kernels else container) / "volume"),
                "WORKER_SERVER_COMMAND": host.without(measured.step.withheld, server_command(), container / "server"),
            }
            if "WORKER_LANDING_DIR" in settings:
                base = settings["WORKER_LANDING_DIR"]
                settings["WORKER_LANDING_DIR"] = stack.enter_context(tempfile.TemporaryDirectory(dir=base))
            if self.options.cold or self.options.latency_us:
                self.store.forget()
            command = STOCK_ORDER if rung.stock_order else first_chunk.START
            name, limit_s = self.store.model.name.short, self.options.limit_s
            try:
                start = first_chunk.measure(
                    self.home, name, command=command, limit_s=limit_s, speeds=speeds, until=until, **settings
                )
            except (NotStarted, TimeoutError) as exc:
                measured.failures.append(str(exc).replace(str(self.home), "HOME"))
            else:
                measured.starts.append(start)


def measure(bench: Bench) -> list[Measured]:
    """Run every rung that was asked for and can run here as often as was asked for; return all, in order."""
    steps = _steps(bench)
    able = [Measured(step) for step in steps if not step.obstacle]
    for step in able[:1] + [other for other in able[1:] if other.step.rung.keeps_kernels]:
        # Not counted: it fills the page cache and the bytecode caches, and a volume with kernels where one is kept.
        fills = step.step.rung.keeps_kernels
        until = "jit_cache.persisted" if fills and bench.options.jit == "mirror" else ""
        bench.run(Measured(step.step), speeds=fills, until=until)
    for number in range(bench.options.runs):
        for measured in able:
            bench.run(measured)
            print(f"run {number + 1}/{bench.options.runs} {_line(measured)}", file=sys.stderr, flush=True)
    by_name = {measured.step.rung.name: measured for measured in able}
    return [by_name.get(step.rung.name, Measured(step)) for step in steps]


def _steps(bench: Bench) -> list[Step]:
    options = bench.options
    given: dict[str, dict[str, str]] = {"jit-cold": {"WORKER_JIT_CACHE": options.jit}}
    if options.landing_dir is not None:
        given["landing"] = {"WORKER_LANDING_DIR": str(options.landing_dir)}
    if options.backend:
        given["backend"] = {BACKEND_VARIABLE: options.backend}
    here = host.look(os.environ, bench.store, options.backend, landing=options.landing_dir is not None)
    return [step for step in rungs.ladder(here, given) if step.rung.name in options.which]


def _line(measured: Measured) -> str:
    title = f"{measured.step.number} {measured.step.rung.title}"
    if not measured.starts:
        return f"{title}: {measured.failures[-1]:.200}"
    return f"{title}: {measured.starts[-1].first_chunk_s:.3f} s"
