"""What there is to know about devices, driver and backends before a boot, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from worker.choice import Choice, choose
from worker.device import Found, dotted
from worker.environment import BACKEND_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.backend import Backend

_SHOWN = {"native": "native", "jit": "JIT from PTX", "unusable": "unusable", "unknown": "unknown"}


@dataclass(frozen=True)
class GpuReport:
    """Devices, backends and the choice between them."""

    found: Found
    backends: tuple[Backend, ...]
    choice: Choice

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types; compute capabilities and CUDA versions as text, as in "9.0"."""
        driver = self.found.driver
        return {
            "found_by": self.found.how,
            "notes": list(self.found.notes),
            "driver": {"version": driver.version, "cuda": dotted(driver.cuda)} if driver else None,
            "devices": [
                asdict(device) | {"capability": dotted(device.capability) if device.capability else None}
                for device in self.found.devices
            ],
            "backends": [self._backend(backend) for backend in self.backends],
            "choice": {
                "backend": self.choice.backend or None,
                "outcome": self.choice.outcome,
                "reason": self.choice.reason,
                "hint": self.choice.hint,
                "upstream": self.choice.upstream or None,
            },
        }

    def _backend(self, backend: Backend) -> dict[str, Any]:
        verdicts = self.choice.verdicts[backend.name]
        return {
            "name": backend.name,
            "problem": backend.problem or None,
            "runtime": dotted(backend.runtime) if backend.runtime else None,
            "driver_floor": backend.driver_floor or None,
            "modules": len(backend.modules),
            "sass": list(backend.architectures("sass")),
            "ptx": list(backend.architectures("ptx")),
            "verdicts": [asdict(verdict) | {"jit_seconds": round(verdict.jit_seconds)} for verdict in verdicts],
        }


def make_report(backends: Sequence[Backend], found: Found, requested: str = "") -> GpuReport:
    """Return the report on `backends` for what was `found`; `requested` is the user's own OLLAMA_LLM_LIBRARY."""
    return GpuReport(found, tuple(backends), choose(backends, found, requested))


def render_table(report: GpuReport) -> str:
    """Return the report as lines for a terminal."""
    found, choice = report.found, report.choice
    lines = [f"driver   {found.driver or 'unknown'}   (asked: {found.how})"]
    for device in found.devices:
        memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else "memory unknown"
        lines.append(f"GPU {device.index}    {device}   {memory}{'   MIG' if device.mig else ''}")
    lines += [f"note     {note}" for note in found.notes]
    lines.append("")
    header = ("BACKEND", "RUNTIME", "DRIVER", "SASS", "PTX")
    lines += _columns([header, *(_code_row(backend) for backend in report.backends)])
    lines.append("")
    if found.devices:
        rows = [
            (backend.name, f"GPU {device.index}", _SHOWN[verdict.outcome], verdict.reason)
            for backend in report.backends
            for device, verdict in zip(found.devices, choice.verdicts[backend.name], strict=True)
        ]
        lines += [*_columns([("BACKEND", "DEVICE", "VERDICT", "WHY"), *rows]), ""]
    lines.append(f"Ollama by itself   {choice.upstream or 'the CPU'}")
    lines.append(f"we set             {f'{BACKEND_VARIABLE}={choice.backend}' if choice.backend else 'nothing'}")
    lines.append(f"because            {choice.reason}")
    if choice.hint:
        lines.append(f"to do              {choice.hint}")
    return "\n".join(lines)


def _code_row(backend: Backend) -> tuple[str, ...]:
    return (
        backend.name,
        dotted(backend.runtime) if backend.runtime else "-",
        f">= {backend.driver_floor}" if backend.driver_floor else "-",
        " ".join(backend.architectures("sass")) or "-",
        " ".join(backend.architectures("ptx")) or "-",
    )


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
