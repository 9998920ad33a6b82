"""What was asked of `bench cold-start`, and the command that asks it again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.cold_start import rungs


@dataclass(frozen=True)
class Options:
    """What was asked for; `latency_us` puts the store behind a slow mount, `cold` empties the page cache of the model.

    `landing_dir` is where copies go, `jit` how kernels are kept, `backend` a CUDA backend to take instead of the best.
    """

    runs: int = 5
    out: Path | None = None
    models: Path | None = None
    model: str = ""
    which: tuple[str, ...] = rungs.NAMES
    landing_dir: Path | None = None
    latency_us: int = 0
    cold: bool = False
    jit: str = "direct"
    backend: str = ""
    limit_s: float = 900.0

    @property
    def command(self) -> str:
        """The command that repeats this, without the machine's paths."""
        default, parts = Options(), [f"python -m worker bench cold-start --runs {self.runs}"]
        parts += ["--models DIR"] if self.models else []
        parts += [f"--model {self.model}"] if self.model else []
        parts += [f"--rungs {' '.join(self.which)}"] if self.which != default.which else []
        parts += ["--landing-dir DIR"] if self.landing_dir else []
        parts += [f"--volume-latency-us {self.latency_us}"] if self.latency_us else []
        parts += ["--cold"] if self.cold else []
        parts += [f"--jit {self.jit}"] if self.jit != default.jit else []
        parts += [f"--backend {self.backend}"] if self.backend else []
        return " ".join(parts)
