"""Which CUDA backend the server is told to use, judged by what its kernels cost on the devices that are there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.device import Device, Found, capability_of
from worker.environment import BACKEND_VARIABLE
from worker.errors import GpuUnusable
from worker.verdict import Outcome, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.backend import Backend


@dataclass(frozen=True)
class Choice:
    """What to set, and why.

    `backend` is the value for OLLAMA_LLM_LIBRARY, empty when Ollama is to decide; `outcome` what it means for the
    devices; `upstream` what Ollama would take by itself, empty for the CPU; `hint` what to do when nothing works.
    `verdicts` holds one verdict per device for every backend, devices in the order they were found.
    """

    backend: str
    outcome: Outcome
    reason: str
    upstream: str
    verdicts: Mapping[str, tuple[Verdict, ...]]
    hint: str = ""

    def require_usable(self) -> Choice:
        """Return the choice itself.

        Raises:
            GpuUnusable: nothing here runs; says what was found and what to rebuild.
        """
        if self.outcome == "unusable":
            raise GpuUnusable(self.reason, self.hint)
        return self


def choose(backends: Sequence[Backend], found: Found, requested: str = "") -> Choice:
    """Return the best backend for the devices, or the one that is `requested`; never raises.

    Most devices served wins, then native code over the JIT, then the lowest driver floor: so a fleet whose
    drivers differ makes the same choice on every host that can run it.
    """
    verdicts = {
        backend.name: tuple(judge(backend, device.capability, found.driver) for device in found.devices)
        for backend in backends
    }
    upstream = upstream_choice(verdicts)
    nothing = _nothing_to_choose(backends, found, requested)
    if nothing:
        return Choice("", "unusable", nothing[0], upstream, verdicts, nothing[1])

    def cost(backend: Backend) -> tuple[int, int, int, str]:
        counts = Counter(verdict.outcome for verdict in verdicts[backend.name])
        return counts["unusable"], counts["jit"], backend.driver_floor, backend.name

    candidates = [backend for backend in backends if requested in {"", backend.name}]
    best = min(candidates, key=cost)
    outcome = _overall(verdicts[best.name])
    if outcome == "unusable":
        other = choose(backends, found).backend if requested else ""
        hint = f"Unset {BACKEND_VARIABLE}: {other} runs here." if other else _hint(backends, found)
        return Choice("", outcome, _what_was_found(candidates, found, verdicts), upstream, verdicts, hint)
    if outcome == "unknown":
        reason = "no device tells its compute capability, so Ollama decides by itself"
        return Choice(requested, outcome, reason, upstream, verdicts)
    reason = _why(verdicts[best.name], outcome)
    if requested:
        reason = f"set by you; {reason}"
    elif upstream != best.name:
        reason = f"{reason}; {_compared(upstream, verdicts)}"
    return Choice(best.name, outcome, reason, upstream, verdicts)


def upstream_choice(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the backend Ollama keeps when nothing is set, empty when it would run on the CPU.

    It sorts the names downwards and keeps the first if every backend sees the same devices, else the last; whether
    a backend would compile for minutes plays no part (Ollama's discover/runner.go, filterOverlapByLibrary).
    """
    seen = {name: [index for index, verdict in enumerate(row) if verdict.listed] for name, row in verdicts.items()}
    names = sorted((name for name, devices in seen.items() if devices), reverse=True)
    if not names:
        return ""
    return names[0] if all(seen[name] == seen[names[0]] for name in names) else names[-1]


def missing_targets(backends: Sequence[Backend], targets: Sequence[str]) -> list[str]:
    """Return a problem for every compute capability in `targets` that no backend has native code for.

    This is the check of an image that is being built: no device, no driver. Targets are spelled 9.0 or 90.
    """
    problems = []
    for target in targets:
        try:
            device = Device(0, "a declared target", capability=capability_of(target))
        except ValueError as error:
            problems.append(str(error))
            continue
        choice = choose(backends, Found((device,), None, "declared"))
        if choice.outcome != "native":
            problems.append(f"no native code for {target}: {choice.reason}")
    return problems


def _nothing_to_choose(backends: Sequence[Backend], found: Found, requested: str) -> tuple[str, str] | None:
    """Return reason and hint when there is no pair of backend and device to judge."""
    names = ", ".join(backend.name for backend in backends) or "none"
    if not found.devices:
        notes = f" ({'; '.join(found.notes)})" if found.notes else ""
        return f"no NVIDIA device is visible{notes}", "Start the container with a GPU, as in docker run --gpus all."
    if not backends:
        return "the image has no CUDA backend", "Rebuild it with --build-arg CUDA_VARIANTS=cuda_v12."
    if requested and requested not in {backend.name for backend in backends}:
        reason = (
            f"{BACKEND_VARIABLE}={requested} names no CUDA backend, so Ollama would run on the CPU; there is: {names}"
        )
        return reason, f"Unset {BACKEND_VARIABLE}: the best one is chosen by itself."
    return None


def _overall(row: Sequence[Verdict]) -> Outcome:
    """Return the worst outcome among the devices the backend can use at all."""
    outcomes = {verdict.outcome for verdict in row} - {"unusable"}
    order: tuple[Outcome, ...] = ("unknown", "jit", "native")
    return next((outcome for outcome in order if outcome in outcomes), "unusable")


def _why(row: Sequence[Verdict], outcome: Outcome) -> str:
    usable = [verdict for verdict in row if verdict.outcome != "unusable"]
    whom = "every device" if len(usable) == len(row) else f"{len(usable)} of {len(row)} devices"
    if outcome == "native":
        return f"native code for {whom}"
    worst = max(usable, key=lambda verdict: verdict.jit_bytes)
    return (
        f"runs on {whom}, but only from PTX: the first boot compiles up to {worst.jit_modules} modules, kernel by "
        f"kernel as they are first used (all of them: {worst.jit_bytes / 1e6:.0f} MB of PTX, about "
        f"{worst.jit_seconds:.0f} s of one core); the JIT cache keeps the result for later boots"
    )


def _compared(upstream: str, verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    if not upstream:
        return "Ollama by itself would run on the CPU"
    bytes_compiled = max(verdict.jit_bytes for verdict in verdicts[upstream])
    does = f", which compiles up to {bytes_compiled / 1e6:.0f} MB of PTX first" if bytes_compiled else ""
    return f"Ollama by itself would take {upstream}{does}"


def _what_was_found(candidates: Sequence[Backend], found: Found, verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    rows = [
        f"{backend.name} on {device}: {verdict.reason}"
        for backend in candidates
        for device, verdict in zip(found.devices, verdicts[backend.name], strict=True)
    ]
    return f"no kernel runs on the devices here: {'; '.join(rows)}"


def _hint(backends: Sequence[Backend], found: Found) -> str:
    """Return what to change: the host when only its driver is too old, else the image."""
    known = [device.capability for device in found.devices if device.capability]
    floors = [
        backend.driver_floor
        for backend in backends
        if any(judge(backend, capability, None).outcome != "unusable" for capability in known)
    ]
    if floors and found.driver and found.driver.branch >= min(floors):
        # The backend would run; only the code it would have compiled is from a newer CUDA than the driver's.
        return "Use hosts with a driver for that CUDA version: on Runpod, set the endpoint's allowed CUDA versions."
    if floors:
        return f"Use hosts with driver {min(floors)} or newer: on Runpod, set the endpoint's allowed CUDA versions."
    targets = " ".join(sorted({f"{major}.{minor}" for major, minor in known}))
    return (
        f"Rebuild the image with --build-arg CUDA_VARIANTS naming a variant that is compiled for {targets}; "
        f'CUDA_TARGETS="{targets}" makes the build check it.'
    )
