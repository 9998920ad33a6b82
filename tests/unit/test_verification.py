from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from worker import known_digest, manifest
from worker.manifest import CONFIG_TYPE, LAYER_PREFIX, Manifest
from worker.names import ModelName
from worker.progress import Meter
from worker.store import Store
from worker.verification import verify


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two models that share their projector."""
    made = Store(tmp_path / "models")
    config, projector = made.put(b"{}", CONFIG_TYPE), made.put(b"p" * 50, f"{LAYER_PREFIX}projector")
    for name in ("a", "b"):
        weights = made.put(name.encode() * 1000, f"{LAYER_PREFIX}model")
        made.publish(Manifest(ModelName.parse(name), (config, weights, projector)))
    return made


def blob(store: Store, name: str, kind: str) -> Path:
    model = manifest.read(store.root, ModelName.parse(name))
    assert model is not None
    layer = model.layer(kind)
    assert layer is not None
    return layer.path(store.root)


def models(store: Store) -> list[Manifest]:
    return list(manifest.every(store.root))


def test_whole_blobs_are_read_once_and_left_as_they_are(store: Store) -> None:
    paths = sorted((store.root / "blobs").iterdir())
    for path in paths:
        os.utime(path, (1000, 2000))
    meters: list[Meter] = []

    def metered(total: int) -> Meter:
        meters.append(Meter(total))
        return meters[-1]

    assert verify(store.root, models(store), metered=metered) == []
    assert [(meter.total_bytes, meter.done_bytes) for meter in meters] == [(2052, 2052)]
    assert {(path.stat().st_atime, path.stat().st_mtime) for path in paths} == {(1000.0, 2000.0)}


def test_damage_is_found_and_whom_it_spoils(store: Store) -> None:
    weights, projector = blob(store, "a", "model"), blob(store, "b", "projector")
    weights.write_bytes(b"a" * 999 + b"x")
    projector.unlink()
    faults = verify(store.root, models(store))
    assert [(fault.path, fault.models) for fault in faults] == [
        (weights, ("a:latest",)),
        (projector, ("a:latest", "b:latest")),
    ]
    assert faults[0].reason.startswith("its bytes have sha256 ")
    assert faults[1].reason == "it cannot be read (No such file or directory)"
    assert verify(store.root, [model for model in models(store) if model.name.model == "c"]) == []


def test_blobs_are_read_at_the_same_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=10)
    computed = known_digest.computed

    def slow(path: Path, *more: object) -> str:
        if path.stat().st_size == 1000:
            together.wait()
        return computed(path, *more)

    monkeypatch.setattr(known_digest, "computed", slow)
    assert verify(store.root, models(store), jobs=2) == []
