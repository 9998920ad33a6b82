"""Whether the blobs of a store still are what their names say, found out by reading all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from worker import known_digest
from worker.manifest import Layer, Manifest
from worker.progress import Meter


@dataclass(frozen=True)
class Fault:
    """What is wrong with one blob, and which models it spoils."""

    path: Path
    reason: str
    models: tuple[str, ...]


def verify(
    models: Path, manifests: Sequence[Manifest], *, jobs: int = 4, metered: Callable[[int], Meter] = Meter
) -> list[Fault]:
    """Return a fault for each blob of `manifests` that is missing or has other bytes; `jobs` are read at once."""
    users: dict[str, list[str]] = {}
    layers: dict[str, Layer] = {}
    for model in manifests:
        for layer in model.layers:
            layers[layer.digest] = layer
            users.setdefault(layer.digest, []).append(model.name.short)
    meter = metered(sum(layer.size_bytes for layer in layers.values()))
    with ThreadPoolExecutor(max(1, jobs), thread_name_prefix="verify") as pool:
        # The largest first: the last one should not be read alone.
        ordered = sorted(layers.values(), key=lambda layer: -layer.size_bytes)
        reasons = list(pool.map(lambda layer: _problem(layer, models, meter), ordered))
    return [
        Fault(layer.path(models), reason, tuple(dict.fromkeys(users[layer.digest])))
        for layer, reason in zip(ordered, reasons, strict=True)
        if reason
    ]


def _problem(layer: Layer, models: Path, meter: Meter) -> str:
    path = layer.path(models)
    try:
        before = path.stat()
        found = known_digest.computed(path, meter.advance)
    except OSError as exc:
        return f"it cannot be read ({exc.strerror or exc})"
    # Having been verified is no use: prune goes by the time of access.
    with contextlib.suppress(OSError):
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "" if found == layer.hex else f"its bytes have sha256 {found[:12]}…"
