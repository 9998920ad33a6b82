"""Whether the runner may skip its search for a placement, because the model is certain to fit on the device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from worker import gguf_head, video_memory
from worker.device import Unanswered
from worker.environment import FIT_VARIABLE, Setting, Unset, is_on
from worker.footprint import (
    CACHE_BYTES,
    Dimensions,
    Footprint,
    Service,
    batch_for,
    dimensions,
    estimate,
)
from worker.location import Located, locate
from worker.names import NameInvalid
from worker.outset import outset

# With these, models come that nobody knows yet; or what does not fit is welcome all the same.
_OPENING = ("WORKER_PULL_ON_DEMAND", "WORKER_ALLOW_MODEL_ADMIN", "WORKER_ALLOW_CPU")
_FALSE = {"", "0", "f", "n", "no", "off", "false"}
# The runner's variables that move no memory to or from the device.
_HARMLESS = {f"LLAMA_ARG_{name}" for name in ("FIT", "THREADS", "THREADS_HTTP", "LOAD_MODE", "CACHE_RAM")}
# Ollama raises the context of a model with vision to this.
_LEAST_CONTEXT = 2048


class Undecided(Exception):
    """There is no telling whether the model fits; the text says why."""


class _Model(NamedTuple):
    """What lies on disk: sizes in bytes, the dimensions in its metadata, and its publisher's parameters.

    The projector is None when there is none, and 0 when it is part of the weights.
    """

    weights_bytes: int
    projector_bytes: int | None
    dimensions: Dimensions
    parameters: Mapping[str, Any]


def setting(
    served: Mapping[str, str], free_bytes: Callable[[], list[int]] = video_memory.free_bytes
) -> Setting | Unset:
    """Return LLAMA_ARG_FIT=off when the model fits by the estimate, else why the search stays on.

    `served` is the server's whole environment; `free_bytes` asks for the free memory of each device.
    """
    try:
        _require_one_model(served)
        model = _on_disk(served)
        service = _service(served, model.parameters)
        free = _of_only_device(served, free_bytes)
    except Undecided as exc:
        return Unset(FIT_VARIABLE, f"the runner looks for a placement: {exc}")
    needed = estimate(
        model.dimensions, service, weights_bytes=model.weights_bytes, projector_bytes=model.projector_bytes
    )
    if needed.wanted > free:
        return Unset(FIT_VARIABLE, f"the runner looks for a placement: {_told(needed, free)}")
    return Setting(FIT_VARIABLE, "off", f"the model fits, looking for a placement takes longer: {_told(needed, free)}")


def _require_one_model(served: Mapping[str, str]) -> None:
    for name in _OPENING:
        if served.get(name, "").strip().lower() not in _FALSE:
            raise Undecided(f"{name} is set")
    if served.get("OLLAMA_MAX_LOADED_MODELS", "").strip() != "1":
        raise Undecided("OLLAMA_MAX_LOADED_MODELS lets models share the device")
    for name in sorted(served):
        if name.startswith("LLAMA_ARG_") and name not in _HARMLESS:
            raise Undecided(f"{name} is set")


def _on_disk(served: Mapping[str, str]) -> _Model:
    """Read what is needed of the model, some 100 KB of it."""
    try:
        start = outset(served)
    except NameInvalid as exc:
        raise Undecided("the model's name cannot be understood") from exc
    if start.others:
        raise Undecided("WORKER_MODELS names other models too")
    found = locate(start.stores, start.wanted)
    if not isinstance(found, Located):
        raise Undecided("the model is not on this disk yet")
    try:
        return _read(
            found, without_projector=start.wanted.skip_projector, draft=not is_on(served, "OLLAMA_DISABLE_MTP")
        )
    except (OSError, ValueError) as exc:
        raise Undecided(str(exc)) from exc


def _read(found: Located, *, without_projector: bool, draft: bool) -> _Model:
    layers = found.manifest.layers
    model = found.manifest.layer("model")
    if model is None:
        raise Undecided("the model has no weights of its own")
    path = model.path(found.models)
    metadata = gguf_head.opening(path)
    parameters = _parameters(found)
    if draft and (found.manifest.layer("draft") or "draft_num_predict" in parameters):
        raise Undecided("a draft model is loaded beside it")
    if {"num_gpu", "main_gpu"} & parameters.keys():
        raise Undecided("the model's own parameters place it")
    added = sum(layer.size_bytes for layer in layers if layer.kind == "adapter")
    projector = None if without_projector else _projector_bytes(found, metadata)
    return _Model(path.stat().st_size + added, projector, dimensions(metadata), parameters)


def _projector_bytes(found: Located, metadata: Mapping[str, Any]) -> int | None:
    sizes = [layer.size_bytes for layer in found.manifest.layers if layer.kind == "projector"]
    inside = any(key.startswith((f"{metadata.get('general.architecture')}.vision.", "clip.")) for key in metadata)
    return sum(sizes) if sizes or inside else None


def _parameters(found: Located) -> Mapping[str, Any]:
    layer = found.manifest.layer("params")
    if layer is None:
        return {}
    value = json.loads(layer.path(found.models).read_bytes())
    return value if isinstance(value, dict) else {}


def _service(served: Mapping[str, str], parameters: Mapping[str, Any]) -> Service:
    cache = served.get("OLLAMA_KV_CACHE_TYPE", "").strip().lower() or "f16"
    if cache not in CACHE_BYTES:
        raise Undecided(f"the size of OLLAMA_KV_CACHE_TYPE={cache} is not known")
    context = _count("num_ctx", parameters.get("num_ctx", served.get("OLLAMA_CONTEXT_LENGTH", "")))
    slots = _count("OLLAMA_NUM_PARALLEL", served.get("OLLAMA_NUM_PARALLEL", ""))
    context = max(context, _LEAST_CONTEXT)
    batch = _count("num_batch", parameters.get("num_batch", batch_for(context * slots)))
    flash_attention = is_on(served, "OLLAMA_FLASH_ATTENTION")
    return Service(context, slots, batch, CACHE_BYTES[cache], flash_attention)


def _count(name: str, value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise Undecided(f"{name}={value} is no number to count with")
    return number


def _of_only_device(served: Mapping[str, str], free_bytes: Callable[[], list[int]]) -> int:
    visible = served.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() != "0" and not visible.strip().startswith("GPU-"):
        raise Undecided(f"CUDA_VISIBLE_DEVICES={visible} is set")
    try:
        free = free_bytes()
    except Unanswered as exc:
        raise Undecided(str(exc)) from exc
    if len(free) != 1:
        raise Undecided(f"there are {len(free)} devices to spread it over" if free else "no device is visible")
    return free[0]


def _told(needed: Footprint, free: int) -> str:
    parts = {"weights": needed.weights, "cache": needed.cache, "computing": needed.compute, "CUDA": needed.context}
    told = ", ".join(f"{size / 1e9:.1f} {name}" for name, size in parts.items())
    return f"at most {needed.wanted / 1e9:.1f} GB ({told}, and a reserve) of {free / 1e9:.1f} GB free"
