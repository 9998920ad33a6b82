"""Whether a backend library's kernels run on a device as they are, after compiling their PTX, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from worker.device import Capability, Driver, dotted

if TYPE_CHECKING:
    from worker.backend import Backend
    from worker.fatbin import Architecture, Entry, Fatbin

Outcome = Literal["native", "jit", "unusable", "unknown"]

# Integrated (Jetson, DRIVE) devices and discrete ones do not run each other's machine code (CUDA Programming Guide).
_INTEGRATED = {(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1), (11, 0)}
# PTX 7.y came with CUDA 11.y, 8.y with 12.y, 9.y with 13.y, but for these (PTX ISA manual, release history).
_CUDA_OF_PTX = {(8, 6): (12, 7), (8, 7): (12, 8), (8, 8): (12, 9)}
_LEGACY, _LEGACY_BRANCH = (7, 0), 570  # what Ollama asks of a device below 7.0
_LEGACY_RUNTIME = (12, 8)
# ptxas took 346 s of one core for the 265 MB of sm_90 PTX in a whole ggml CUDA backend.
_JIT_SECONDS_PER_BYTE = 346 / 265_169_729


@dataclass(frozen=True)
class Verdict:
    """The outcome for one backend and one device, and why; `jit_*` is what a first boot has to compile at most.

    `listed` says whether Ollama's discovery takes the device into its list with this backend: it looks at the
    driver and at the compiled architectures, never at what a kernel needs.
    """

    outcome: Outcome
    reason: str
    listed: bool = True
    jit_modules: int = 0
    jit_bytes: int = 0

    @property
    def jit_seconds(self) -> float:
        """Seconds of one CPU core if every kernel is compiled; the driver compiles only those a model uses."""
        return self.jit_bytes * _JIT_SECONDS_PER_BYTE


def judge(backend: Backend, capability: Capability | None, driver: Driver | None) -> Verdict:
    """Return what `backend` does on a device of `capability`; an unknown `driver` counts as new enough."""
    if backend.problem:
        return Verdict("unusable", backend.problem, listed=False)
    if not backend.modules:
        return Verdict("unusable", "the library carries no GPU code", listed=False)
    floor = backend.driver_floor
    if capability and capability < _LEGACY and backend.runtime and _LEGACY_RUNTIME <= backend.runtime < (13, 0):
        floor = max(floor, _LEGACY_BRANCH)
    if driver and driver.branch < floor:
        return Verdict("unusable", f"needs driver {floor} or newer, this is {driver.version}", listed=False)
    if capability is None:
        return Verdict("unknown", "the device's compute capability could not be read")
    verdict = _judge_modules(backend.modules, capability, driver)
    if capability in backend.capabilities:
        return verdict
    # Ollama compares with the list its runner prints, to the digit (discover/llama_server.go).
    although = "" if verdict.outcome == "unusable" else ", although its code would run"
    return Verdict(
        "unusable", f"not compiled for {dotted(capability)}: Ollama skips the device{although}", listed=False
    )


def _judge_modules(modules: tuple[Fatbin, ...], capability: Capability, driver: Driver | None) -> Verdict:
    """Return the worst module's outcome: a kernel that is missing fails when it is first needed."""
    compiled: list[Entry] = []
    too_new: set[tuple[int, int]] = set()
    bare = 0
    for module in modules:
        if any(entry.kind == "sass" and runs_sass(entry.architecture, capability) for entry in module.entries):
            continue
        fits = [entry for entry in module.entries if entry.kind == "ptx" and takes_ptx(entry.architecture, capability)]
        best = max(fits, key=lambda entry: entry.architecture, default=None)
        if best is None:
            bare += 1
        elif driver and driver.cuda < cuda_of_ptx(best.version):
            too_new.add(best.version)
        else:
            compiled.append(best)
    if bare:
        return Verdict("unusable", f"{bare} of {len(modules)} modules have neither SASS nor PTX for it")
    if too_new:
        needed = dotted(cuda_of_ptx(max(too_new)))
        return Verdict("unusable", f"only PTX, and it needs a driver for CUDA {needed}, this is {driver}")
    if not compiled:
        return Verdict("native", f"SASS in {len(modules)} of {len(modules)} modules")
    size = sum(entry.unpacked_bytes for entry in compiled)
    names = ", ".join(sorted({f"compute_{entry.architecture}" for entry in compiled}))
    reason = f"PTX only ({names}) in {len(compiled)} of {len(modules)} modules"
    return Verdict("jit", reason, jit_modules=len(compiled), jit_bytes=size)


def runs_sass(code: Architecture, device: Capability) -> bool:
    """Whether machine code for `code` runs on `device`: same major version and no newer minor, `a` exactly.

    Source: CUDA Programming Guide, binary compatibility; family-specific (`f`) code follows the same rule.
    """
    own = (code.major, code.minor)
    if code.suffix == "a" or own in _INTEGRATED or device in _INTEGRATED:
        return own == device
    return code.major == device[0] and code.minor <= device[1]


def takes_ptx(code: Architecture, device: Capability) -> bool:
    """Whether the driver can compile PTX for `code` for `device`: any newer device, `a` exactly, `f` its family."""
    if code.suffix:
        return runs_sass(code, device)
    return (code.major, code.minor) <= device


def cuda_of_ptx(version: tuple[int, int]) -> tuple[int, int]:
    """Return the CUDA version (major, minor) whose driver first understood a PTX language version."""
    return _CUDA_OF_PTX.get(version, (version[0] + 4, version[1]))
