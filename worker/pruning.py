"""What goes when a store takes too much room: the models not used for longest, and nothing that is in use."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker import manifest
from worker.lease import Lease
from worker.manifest import Layer, Manifest
from worker.store import Store

# What a killed download left is of use to the next start; after a day nobody wants it any more.
ABANDONED_S = 86_400.0
USE_TERM_S = 600.0


@dataclass(frozen=True)
class Candidate:
    """A model under all the names it has: its blobs by digest with their sizes, its last use (seconds since 1970)."""

    models: tuple[Manifest, ...]
    blobs: dict[str, int]
    last_used_s: float
    kept_because: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called."""
        return tuple(model.name.short for model in self.models)


@dataclass(frozen=True)
class Plan:
    """What is to go, and how many bytes stay; `over_bytes` is what is too much and cannot go."""

    gone: tuple[Candidate, ...]
    left_bytes: int
    over_bytes: int


def plan(candidates: Sequence[Candidate], budget_bytes: int) -> Plan:
    """Choose what goes so that the rest takes no more than `budget_bytes`: least recently used first; pure.

    Raises:
        ValueError: `budget_bytes` is negative, which no rest could ever keep to.
    """
    if budget_bytes < 0:
        raise ValueError(f"{budget_bytes:,} bytes cannot be kept: say 0 or more")
    staying = sorted(candidates, key=lambda candidate: candidate.last_used_s)
    gone: list[Candidate] = []
    for candidate in list(staying):
        if _size(staying) <= budget_bytes:
            break
        if not candidate.kept_because:
            staying.remove(candidate)
            gone.append(candidate)
    left_bytes = _size(staying)
    return Plan(tuple(gone), left_bytes, max(0, left_bytes - budget_bytes))


def candidates(store: Store, loaded: Collection[str] = ()) -> list[Candidate]:
    """Return the models of a store; those in `loaded` (short names) and those somebody has a lease on are kept."""
    groups: dict[str, list[Manifest]] = {}
    for model in manifest.every(store.root):
        weights = model.layer("model")
        groups.setdefault(weights.digest if weights else model.name.full, []).append(model)
    leased = set(_leased(store))
    found = []
    for models in groups.values():
        names = {model.name.short for model in models}
        why = "it is loaded" if names & set(loaded) else "it is leased" if names & leased else ""
        layers: list[Layer] = [layer for model in models for layer in model.layers]
        last_used_s = max(store.last_used_s(model) for model in models)
        found.append(Candidate(tuple(models), {x.digest: x.size_bytes for x in layers}, last_used_s, why))
    return found


def remove(store: Store, gone: Sequence[Candidate]) -> int:
    """Remove models under all their names; return how many bytes that freed."""
    return sum(store.remove(model) for candidate in gone for model in candidate.models)


def abandoned(store: Store, now_s: float | None = None) -> list[Path]:
    """Return what interrupted work left for more than a day: partial files, and blobs that no model names."""
    before_s = (time.time() if now_s is None else now_s) - ABANDONED_S
    named = {layer.path(store.root).name for model in manifest.every(store.root) for layer in model.layers}
    stray = [path for path in store.root.glob("blobs/*") if path.name not in named]
    found = []
    for path in [*store.partials.glob("*"), *stray]:
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < before_s:
                found.append(path)
    return sorted(found)


def discard(paths: Sequence[Path]) -> None:
    """Remove files and folders."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def hold(store: Store, model: Manifest) -> Lease | None:
    """Return a lease that keeps a model from being pruned while it is renewed; None when the store takes none."""
    try:
        place = store.leases / f"use-{uuid.uuid4().hex}.lease"
        return Lease.acquire(place, term_s=USE_TERM_S, note=model.name.short)
    except OSError:
        return None


def _leased(store: Store) -> Iterator[str]:
    """Yield the names of models that are being brought or used now; leases that ran out are cleared away."""
    for path in sorted(store.leases.glob("*.lease")):
        try:
            note = str(json.loads(path.read_bytes()).get("note", ""))
            over = Lease.acquire(path, term_s=USE_TERM_S)
        except (OSError, ValueError, AttributeError):
            continue
        if over is not None:
            over.release()
        else:
            yield note


def _size(staying: Sequence[Candidate]) -> int:
    """Blobs are shared: each counts once."""
    blobs: dict[str, int] = {}
    for candidate in staying:
        blobs |= candidate.blobs
    return sum(blobs.values())
