from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from worker import manifest, store
from worker.known_digest import Damaged
from worker.manifest import CONFIG_TYPE, LAYER_PREFIX, Manifest
from worker.names import ModelName
from worker.progress import Halted, Meter
from worker.registration import MODEL_TYPE
from worker.store import NoRoom, Store

CONTENT = b"weights" * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def place(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def another_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither hard links nor shared extents."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(store.os, "link", refuse)
    monkeypatch.setattr(store.fcntl, "ioctl", refuse)


def left_over(place: Store) -> list[Path]:
    return list(place.partials.iterdir()) if place.partials.exists() else []


def test_a_file_on_the_same_disk_is_linked_and_takes_no_room(place: Store, file: Path) -> None:
    layer = place.adopt(file, SHA256, media_type=MODEL_TYPE)
    assert (layer.digest, layer.size_bytes) == (f"sha256:{SHA256}", len(CONTENT))
    assert layer.path(place.root).samefile(file)
    assert place.has(SHA256, len(CONTENT))
    assert not place.has(SHA256, 1)
    place.adopt(file, SHA256, media_type=MODEL_TYPE)
    assert left_over(place) == []


def test_a_link_is_made_to_the_file_and_not_to_a_link(place: Store, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    place.adopt(link, SHA256, media_type=MODEL_TYPE)
    assert not place.blob(SHA256).is_symlink()
    assert place.blob(SHA256).samefile(file)


@pytest.mark.usefixtures("another_disk")
def test_a_file_on_another_disk_is_copied_and_verified(place: Store, file: Path) -> None:
    meter = Meter(len(CONTENT))
    place.adopt(file, SHA256, media_type=MODEL_TYPE, meter=meter)
    assert place.blob(SHA256).read_bytes() == CONTENT
    assert not place.blob(SHA256).samefile(file)
    assert meter.done_bytes <= len(CONTENT)
    assert left_over(place) == []


@pytest.mark.usefixtures("another_disk")
def test_a_copy_with_another_digest_is_not_kept(place: Store, file: Path) -> None:
    with pytest.raises(Damaged, match=r"m\.gguf"):
        place.adopt(file, "0" * 64, media_type=MODEL_TYPE)
    assert not place.blob("0" * 64).exists()
    assert left_over(place) == []


@pytest.mark.usefixtures("another_disk")
def test_a_copy_that_is_stopped_leaves_nothing(place: Store, file: Path) -> None:
    def halt() -> None:
        raise Halted("enough")

    with pytest.raises(Halted):
        place.adopt(file, SHA256, media_type=MODEL_TYPE, meter=Meter(len(CONTENT), halt=halt))
    assert not place.blob(SHA256).exists()
    assert left_over(place) == []


@pytest.mark.usefixtures("another_disk")
def test_where_nobody_else_looks_a_symbolic_link_does(place: Store, file: Path, tmp_path: Path) -> None:
    own = Store(place.root, symlinks=True)
    own.adopt(file, SHA256, media_type=MODEL_TYPE)
    assert own.blob(SHA256).is_symlink()
    assert own.has(SHA256, len(CONTENT))
    moved = file.rename(tmp_path / "moved.gguf")
    assert not own.has(SHA256)
    # A link that leads nowhere is replaced.
    place.adopt(moved, SHA256, media_type=MODEL_TYPE)
    assert not own.blob(SHA256).is_symlink()


@pytest.mark.usefixtures("another_disk")
def test_no_room_is_found_out_before_copying(place: Store, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = store.storage.place(file)
    monkeypatch.setattr(store.storage, "place", lambda _: type(free)(free.path, free.filesystem, 1000))
    with pytest.raises(NoRoom, match=r"has 0.00 GB free, 0.00 GB are needed"):
        place.adopt(file, SHA256, media_type=MODEL_TYPE)
    assert left_over(place) == []
    with pytest.raises(NoRoom, match=r"models has 0\.00 GB free, 42\.50 GB are needed"):
        place.require_room(42_500_000_000)


def test_a_blob_that_was_cut_off_is_replaced(place: Store, file: Path) -> None:
    place.blob(SHA256).parent.mkdir(parents=True)
    place.blob(SHA256).write_bytes(CONTENT[:10])
    place.adopt(file, SHA256, media_type=MODEL_TYPE)
    assert place.blob(SHA256).read_bytes() == CONTENT


def test_a_finished_file_gets_its_final_name(place: Store) -> None:
    place.partials.mkdir(parents=True)
    whole = place.partials / "x.data"
    whole.write_bytes(CONTENT)
    assert place.install(whole, SHA256, media_type=MODEL_TYPE).size_bytes == len(CONTENT)
    assert place.blob(SHA256).read_bytes() == CONTENT
    assert left_over(place) == []


def test_the_same_content_may_be_finished_by_two(place: Store) -> None:
    place.partials.mkdir(parents=True)
    whole = place.partials / "x.data"
    with pytest.raises(FileNotFoundError):
        place.install(whole, SHA256, media_type=MODEL_TYPE)
    whole.write_bytes(CONTENT)
    first = place.install(whole, SHA256, media_type=MODEL_TYPE)
    assert place.install(whole, SHA256, media_type=MODEL_TYPE) == first


def model(place: Store, name: str, *contents: bytes) -> Manifest:
    """Publish a model whose last layer is its weights."""
    layers = [place.put(data, f"{LAYER_PREFIX}model") for data in contents]
    made = Manifest(ModelName.parse(name), (place.put(b"{}", CONFIG_TYPE), *layers))
    place.publish(made)
    return made


def test_a_model_is_visible_only_when_it_is_whole(place: Store) -> None:
    made = model(place, "a", b"one")
    assert manifest.read(place.root, made.name) == made
    place.blob(hashlib.sha256(b"one").hexdigest()).unlink()
    with pytest.raises(ValueError, match="b:latest: sha256:7692c3ad3540 is not in the store"):
        place.publish(Manifest(ModelName.parse("b"), made.layers))
    assert [found.name.short for found in manifest.every(place.root)] == ["a:latest"]
    assert left_over(place) == []


def test_a_model_goes_with_what_only_it_uses(place: Store) -> None:
    gone = model(place, "org/a:1", b"shared", b"own")
    kept = model(place, "b", b"shared")
    assert place.remove(gone) == 3
    assert kept.lacks(place.root) == []
    assert [found.name.short for found in manifest.every(place.root)] == ["b:latest"]
    assert not (place.root / "manifests" / "registry.ollama.ai" / "org").exists()
    assert place.remove(gone) == 0


def test_the_last_use_is_remembered(place: Store) -> None:
    made = model(place, "a", b"one", b"larger")
    blob = made.layers[-1].path(place.root)
    path = manifest.path_of(place.root, made.name)
    os.utime(path, (1000, 1000))
    os.utime(blob, (500, 700))
    assert place.last_used_s(made) == 1000
    before_ns = blob.stat().st_mtime_ns
    place.mark_used(made)
    assert place.last_used_s(made) > 1_000_000
    assert blob.stat().st_mtime_ns == before_ns
    blob.unlink()
    place.mark_used(made)
    assert place.last_used_s(made) == 0
