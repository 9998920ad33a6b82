"""What a timeline says should be changed, each with the time it costs and the lines it was seen in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from worker.timeline.advice import ADVICE
from worker.timeline.model import Timeline
from worker.timeline.parse import Entry
from worker.timeline.scale import duration
from worker.timeline.spans import State, Stretch

_S = 1_000_000_000
# A prompt this short is through a GPU in well under a second, unless something else happens first.
_SHORT_PROMPT_TOKENS = 1024
_LARGE_CONTEXT_TOKENS = 131_072
# One reader of a local disk or of the page cache is faster than this; of a network volume rarely.
_SLOW_READ_BYTES_PER_S = 2e9
_SIZE_BYTES = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_REMOTE_SOURCES = {"pull", "registry", "hub", "object_store"}
# Ollama's library directory whose kernels have to be compiled on the machine.
_PTX_ONLY = "cuda_v13"
# Phase → the advice it deserves and the least time that makes it worth a word.
_PHASES = {
    "process start": ("slow_process_start", _S),
    "store check": ("store_walk", _S // 2),
    "schedule": ("slow_schedule", _S // 2),
    "fit": ("fit", _S // 4),
    "warm-up": ("warmup", _S // 2),
    "projector": ("projector", _S // 4),
}


@dataclass(frozen=True)
class Finding:
    """One thing to do; `code` is a key of ADVICE."""

    code: str
    evidence: str
    cost_ns: int | None = None
    """Nanoseconds of this start it accounts for, where that can be read off; not a promise of what is won."""

    @property
    def sentence(self) -> str:
        """What to do."""
        return ADVICE[self.code]


def findings(timeline: Timeline) -> tuple[Finding, ...]:
    """Apply every rule; the dearest finding comes first, those without a price last, in the order of the rules."""
    found = [finding for rule in _RULES for finding in rule(timeline)]
    return tuple(sorted(found, key=lambda finding: -(finding.cost_ns or 0)))


def _cpu(timeline: Timeline) -> Iterator[Finding]:
    layers = _last(timeline, "layers.offloaded")
    load = _last(timeline, "load.finished")
    size, vram = (load.number("size_bytes"), load.number("size_vram_bytes")) if load else (None, None)
    if _no_gpu(timeline):
        yield Finding("cpu_only", "inference compute library=cpu")
    elif layers is not None and (layers.number("on_gpu") or 0) < (layers.number("layers") or 0):
        yield Finding("partly_on_cpu", f"offloaded {layers.text('on_gpu')}/{layers.text('layers')} layers to GPU")
    elif size and vram is not None and vram < size:
        yield Finding("partly_on_cpu", f"{vram:.0f} of {size:.0f} bytes in video memory")


def _no_gpu(timeline: Timeline) -> bool:
    gpu = _last(timeline, "gpu.discovered")
    return gpu is not None and gpu.text("library").lower() == "cpu"


def _kernels(timeline: Timeline) -> Iterator[Finding]:
    if _no_gpu(timeline):
        return
    backend = _backend(timeline)
    prefill = _short_prefill(timeline)
    decodes = [part for span in timeline.spans for part in span.parts if part.name in {"probe", "warm-up"}]
    slow = [part for part in (*decodes, *prefill) if part.took_ns >= _S]
    cost_ns = sum(part.took_ns for part in slow) or None
    seen = ", ".join([backend, *(f"{part.name} took {duration(part.took_ns)}" for part in slow)]).removeprefix(", ")
    if backend == _PTX_ONLY:
        yield Finding("jit_suspected" if slow else "ptx_only_backend", seen, cost_ns)
    elif any(part in slow for part in prefill):
        yield Finding("first_prefill_slow", seen, cost_ns)


def _short_prefill(timeline: Timeline) -> list[Stretch]:
    """Return the window's prefill, unless its prompt was long enough to explain its length."""
    long_jobs = {job.job_id for job in timeline.jobs if (job.prompt_tokens or 0) > _SHORT_PROMPT_TOKENS}
    spans = (span for span in timeline.spans if span.name == "prefill" and span.state is State.CLOSED)
    return [span for span in spans if span.job_id not in long_jobs]


def _backend(timeline: Timeline) -> str:
    """Return the backend's directory name: that of the library loaded, else that of the device listed."""
    loaded = [entry.text("path") for entry in timeline.entries if entry.name == "backend.loaded"]
    listed = [entry.text("libdirs") for entry in timeline.entries if entry.name == "gpu.discovered"]
    named = re.findall(r"cuda_v\d+|rocm[\w.]*|vulkan", " ".join((*loaded, *listed)))
    return named[0] if named else ""


def _discovery(timeline: Timeline) -> Iterator[Finding]:
    part = _part(timeline, "GPU discovery")
    if part is None or part.took_ns < _S:
        return
    seen = [f"GPU discovery took {duration(part.took_ns)}"]
    tried = {entry.text("OLLAMA_LIBRARY_PATH") for entry in timeline.entries if entry.name == "library.tried"}
    if tried:
        seen.append(f"{len(tried)} library directories tried")
    configured = _last(timeline, "server.configured")
    choice = re.search(r"OLLAMA_LLM_LIBRARY:([^\s\]]*)", configured.text("env")) if configured else None
    if choice is not None:
        seen.append(f"OLLAMA_LLM_LIBRARY={choice[1] or '(unset)'}")
    yield Finding("slow_discovery", ", ".join(seen), part.took_ns)


def _download(timeline: Timeline) -> Iterator[Finding]:
    placed = _last(timeline, "weights.placed")
    weights = next((span for span in timeline.spans if span.name == "weights"), None)
    if weights is None or placed is None or weights.took_ns < _S or placed.text("source") not in _REMOTE_SOURCES:
        return
    seen = f"weights from {placed.text('source')} in {duration(weights.took_ns)}"
    yield Finding("downloaded_at_boot", seen, weights.took_ns)


def _read(timeline: Timeline) -> Iterator[Finding]:
    size, started = _last(timeline, "file.sized"), _last(timeline, "tensors.started")
    # Without a mapping the file is read while it is uploaded, after the layers have been given their places.
    mapped = started is None or started.text("mode") not in {"none", "dio"}
    part = _part(timeline, "read" if mapped else "upload")
    if size is None or part is None or part.took_ns < _S:
        return
    rate = (size.number("size") or 0) * _SIZE_BYTES.get(size.text("unit"), 0) / part.took_ns * _S
    if 0 < rate < _SLOW_READ_BYTES_PER_S:
        seen = f"{size.text('size')} {size.text('unit')} in {duration(part.took_ns)}: {rate / 1e6:.0f} MB/s"
        yield Finding("slow_read", seen, part.took_ns)


def _memory(timeline: Timeline) -> Iterator[Finding]:
    if _last(timeline, "mmap.disabled") is not None:
        yield Finding("mmap_disabled", "disabling mmap for llama-server load due to host memory pressure")
    sized, default = _last(timeline, "context.sized"), _last(timeline, "context.defaulted")
    context = (sized.number("n_ctx") if sized else None) or (default.number("default_num_ctx") if default else None)
    if context is not None and context >= _LARGE_CONTEXT_TOKENS:
        part = _part(timeline, "context")
        yield Finding("large_context", f"context {context:.0f} tokens", part.took_ns if part else None)


def _phases(timeline: Timeline) -> Iterator[Finding]:
    for name, (code, least_ns) in _PHASES.items():
        part = _part(timeline, name)
        # Without the warm-up the same kernels would be compiled one decode later.
        moved = code == "warmup" and _backend(timeline) == _PTX_ONLY
        if part is not None and part.took_ns >= least_ns and not moved:
            yield Finding(code, f"{name} took {duration(part.took_ns)}", part.took_ns)


def _reloads(timeline: Timeline) -> Iterator[Finding]:
    # Ollama repeats "started in" at once; a model loaded again takes a runner spawned again.
    loaded = next((entry for entry in timeline.entries if entry.name == "runner.started" and entry.exact), None)
    spawned = [entry for entry in timeline.entries if entry.name == "runner.spawned" and entry.exact]
    again = [entry for entry in spawned if loaded is not None and entry.at_ns > loaded.at_ns]
    if loaded is not None and again:
        later = duration(again[0].at_ns - loaded.at_ns)
        yield Finding("loaded_again", f"{len(again)} further runner starts, the first {later} after the first load")


def _unexplained(timeline: Timeline) -> Iterator[Finding]:
    longest = max(timeline.gaps, key=lambda gap: gap.took_ns, default=None)
    if longest is not None and longest.took_ns >= max(_S // 2, timeline.total_ns // 10):
        yield Finding("unexplained_gap", f"{longest.meaning}: {duration(longest.took_ns)}", longest.took_ns)


_RULES: tuple[Callable[[Timeline], Iterator[Finding]], ...] = (
    _cpu,
    _kernels,
    _download,
    _read,
    _discovery,
    _phases,
    _memory,
    _reloads,
    _unexplained,
)


def _last(timeline: Timeline, name: str) -> Entry | None:
    return next((entry for entry in reversed(timeline.entries) if entry.name == name), None)


def _part(timeline: Timeline, name: str) -> Stretch | None:
    return next((part for span in timeline.spans for part in span.parts if part.name == name), None)
