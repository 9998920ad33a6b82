from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import manifest
from worker.lease import Lease
from worker.manifest import CONFIG_TYPE, LAYER_PREFIX, Manifest
from worker.names import ModelName
from worker.pruning import ABANDONED_S, Candidate, abandoned, candidates, discard, hold, plan, remove
from worker.references import from_text
from worker.sources.turn import Turn
from worker.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def published(store: Store, name: str, content: bytes, used_s: float) -> Manifest:
    layers = (store.put(b"{}", CONFIG_TYPE), store.put(content, f"{LAYER_PREFIX}model"))
    made = Manifest(ModelName.parse(name), layers)
    store.publish(made)
    os.utime(manifest.path_of(store.root, made.name), (used_s, used_s))
    os.utime(layers[1].path(store.root), (used_s, used_s))
    return made


def candidate(number: int, size: int, used_s: float, why: str = "", shared: int = 0) -> Candidate:
    return Candidate((), {f"own{number}": size, "shared": shared}, used_s, why)


sizes = st.integers(0, 100)
found = st.lists(st.tuples(sizes, st.floats(0, 1e9), st.sampled_from(["", "", "it is loaded"])), max_size=8).map(
    lambda rows: [candidate(number, *row, shared=7) for number, row in enumerate(rows)]
)


@given(found, st.integers(0, 500))
def test_what_stays_fits_or_cannot_go(models: list[Candidate], budget: int) -> None:
    chosen = plan(models, budget)
    staying = [model for model in models if model not in chosen.gone]
    left = sum({digest: size for model in staying for digest, size in model.blobs.items()}.values())
    assert chosen.left_bytes == left
    assert chosen.over_bytes == max(0, left - budget)
    assert not any(model.kept_because for model in chosen.gone)
    if chosen.over_bytes:
        assert all(model.kept_because for model in staying)
    # Nothing goes that was used later than something that could have gone instead.
    free = [model.last_used_s for model in staying if not model.kept_because]
    assert not chosen.gone or not free or max(model.last_used_s for model in chosen.gone) <= min(free)
    # The last one that went had to.
    if chosen.gone:
        before = [*staying, chosen.gone[-1]]
        assert sum({d: s for model in before for d, s in model.blobs.items()}.values()) > budget


@given(found, st.integers(max_value=-1))
def test_less_than_nothing_is_no_plan(models: list[Candidate], budget: int) -> None:
    with pytest.raises(ValueError, match=r"cannot be kept: say 0 or more"):
        plan(models, budget)


def test_models_not_used_for_longest_go_first(store: Store) -> None:
    for name, used_s in (("new", 3000.0), ("old", 1000.0), ("middle", 2000.0)):
        published(store, name, name.encode() * 100, used_s)
    found = candidates(store)
    assert {candidate.names: candidate.last_used_s for candidate in found} == {
        ("new:latest",): 3000.0,
        ("old:latest",): 1000.0,
        ("middle:latest",): 2000.0,
    }
    chosen = plan(found, 650)
    assert [candidate.names for candidate in chosen.gone] == [("old:latest",), ("middle:latest",)]
    assert remove(store, chosen.gone) == 900
    assert [model.name.short for model in manifest.every(store.root)] == ["new:latest"]
    assert next(manifest.every(store.root)).lacks(store.root) == []


def test_a_model_goes_under_all_its_names(store: Store) -> None:
    published(store, "a:1", b"x" * 100, 1000.0)
    published(store, "a:latest", b"x" * 100, 1000.0)
    (found,) = candidates(store)
    assert found.names == ("a:1", "a:latest")
    assert remove(store, [found]) == 102
    assert list(manifest.every(store.root)) == []


def test_what_is_loaded_or_leased_stays(store: Store) -> None:
    made = {name: published(store, name, name.encode() * 100, 1000.0) for name in ("loaded", "brought", "used", "free")}
    assert Lease.acquire(Turn(store, from_text("brought"))._lease, term_s=60.0, note="brought:latest")
    lease = hold(store, made["used"])
    assert lease is not None
    why = {found.names[0]: found.kept_because for found in candidates(store, {"loaded:latest"})}
    assert why == {
        "loaded:latest": "it is loaded",
        "brought:latest": "it is leased",
        "used:latest": "it is leased",
        "free:latest": "",
    }
    lease.release()
    assert {found.kept_because for found in candidates(store) if "used:latest" in found.names} == {""}


def test_a_lease_that_ran_out_protects_nothing(store: Store) -> None:
    published(store, "a", b"x", 1000.0)
    path = store.leases / "a.lease"
    assert Lease.acquire(path, term_s=0.05, note="a:latest")
    time.sleep(0.1)
    assert candidates(store)[0].kept_because == ""
    assert not path.exists()


@pytest.mark.parametrize("content", [b"{", b"[]", b'"x"'])
def test_a_lease_that_cannot_be_read_is_nobodys(store: Store, content: bytes) -> None:
    published(store, "a", b"x", 1000.0)
    store.leases.mkdir()
    (store.leases / "a.lease").write_bytes(content)
    assert candidates(store)[0].kept_because == ""


def test_a_store_that_cannot_be_written_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    made = Manifest(ModelName.parse("a"), ())
    assert hold(Store(tmp_path / "file"), made) is None


def test_what_interrupted_work_left_goes_after_a_day(store: Store) -> None:
    published(store, "a", b"x" * 100, 1000.0)
    (store.partials / "hub.x").mkdir()
    (store.partials / "hub.x" / "file").write_bytes(b"x")
    (store.partials / "y.data").write_bytes(b"x")
    stray = store.root / "blobs" / f"sha256-{'0' * 64}"
    stray.write_bytes(b"x")
    fresh = store.partials / "z.data"
    fresh.write_bytes(b"x")
    old_s = time.time() - ABANDONED_S - 10
    for path in (store.partials / "hub.x", store.partials / "y.data", stray):
        os.utime(path, (old_s, old_s))
    left = abandoned(store)
    assert left == sorted([store.partials / "hub.x", store.partials / "y.data", stray])
    discard(left)
    assert list(store.partials.iterdir()) == [fresh]
    assert not stray.exists()
    assert next(manifest.every(store.root)).lacks(store.root) == []
    assert abandoned(store, time.time() + ABANDONED_S + 10) == [fresh]
