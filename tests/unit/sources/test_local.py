from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.repositories import Heard, blobs, brought, cache, content, folder, left_over, missed
from worker import gguf_file, manifest
from worker.location import Located, locate
from worker.manifest import Manifest
from worker.references import from_repository, from_text
from worker.sources.base import Offer
from worker.sources.local import Local
from worker.store import Store

VISION = ("M-Q2_K.gguf", "M-Q4_K_M.gguf", "M-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf", "README.md")
SPLIT = tuple(f"Q8_0/Big-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def kinds(made: Manifest) -> list[str]:
    return [layer.kind for layer in made.layers]


def test_a_file_becomes_a_model_under_its_own_name(store: Store, tmp_path: Path) -> None:
    place = folder(tmp_path / "files", *VISION)
    wanted = from_text(str(place / "M-Q8_0.gguf"))
    made = brought(Local(), wanted, store)
    assert made.name.short == "local/m:q8_0"
    # A projector that lies beside a file is taken for its own.
    assert kinds(made) == ["config", "model", "projector"]
    assert made.layers[1].path(store.root).samefile(place / "M-Q8_0.gguf")
    assert made.layers[2].path(store.root).samefile(place / "mmproj-F16.gguf")
    assert isinstance(locate([store.root], wanted), Located)
    assert not left_over(store)


def test_a_projector_can_be_left_out(store: Store, tmp_path: Path) -> None:
    place = folder(tmp_path / "files", *VISION)
    wanted = replace(from_text(str(place / "M-Q8_0.gguf")), skip_projector=True)
    made = brought(Local(), wanted, store)
    assert kinds(made) == ["config", "model"]
    assert len(blobs(store)) == 2
    assert isinstance(locate([store.root], wanted), Located)
    assert not isinstance(locate([store.root], replace(wanted, skip_projector=False)), Located)


def test_a_folder_is_a_repository(store: Store, tmp_path: Path) -> None:
    place = folder(tmp_path / "My-Repo", *VISION)
    heard = Heard()
    made = brought(Local(), from_text(str(place)), store, heard)
    assert made.name.short == "local/my-repo:q4_k_m"
    assert made.layers[1].path(store.root).samefile(place / "M-Q4_K_M.gguf")
    assert any("no quantization was asked for; taking Q4_K_M" in note for note in heard.notes)
    # The next start finds it by the folder's name alone.
    found = locate([store.root], from_text(str(place)))
    assert isinstance(found, Located)
    assert found.name == "local/my-repo:q4_k_m"


def test_a_quantization_of_a_folder(store: Store, tmp_path: Path) -> None:
    place = folder(tmp_path / "My-Repo", *VISION)
    wanted = replace(from_text(str(place)), quantization="Q2_K")
    assert brought(Local(), wanted, store).name.short == "local/my-repo:q2_k"


def test_a_cache_folder_is_a_repository(store: Store, tmp_path: Path) -> None:
    place = cache(tmp_path / "hub", "org/repo", *VISION[:4])
    made = brought(Local(), from_text(str(place)), store)
    assert made.layers[1].path(store.root).samefile(place / "blobs" / made.layers[1].hex)


@pytest.mark.parametrize("asked", ["", "Q8_0/Big-Q8_0-00002-of-00003.gguf"])
def test_parts_are_made_one(store: Store, tmp_path: Path, asked: str) -> None:
    place = folder(tmp_path / "Big", *SPLIT)
    heard = Heard()
    made = brought(Local(), from_text(str(place / asked)), store, heard)
    assert made.name.short == "local/big:q8_0"
    whole = gguf_file.read(made.layers[1].path(store.root))
    whole.require_whole()
    assert whole.split_count == 0
    assert [tensor.name for tensor in whole.tensors] == [f"blk.0000{n}.weight" for n in (1, 2, 3)]
    raw = made.layers[1].path(store.root).read_bytes()
    for path in SPLIT:
        weights = content(path, tmp_path)[-4 * 64 * 64 :]
        assert weights in raw
    assert not left_over(store)


def test_a_model_that_changed_is_registered_anew(store: Store, tmp_path: Path) -> None:
    place = folder(tmp_path / "files", "M-Q8_0.gguf")
    wanted = from_text(str(place / "M-Q8_0.gguf"))
    first = brought(Local(), wanted, store)
    (place / "M-Q8_0.gguf").unlink()
    (place / "M-Q8_0.gguf").write_bytes(content("another.gguf", tmp_path))
    os.utime(place / "M-Q8_0.gguf", ns=(0, 1))
    assert not isinstance(locate([store.root], wanted), Located)
    second = brought(Local(), wanted, store)
    assert second.layers[1] != first.layers[1]
    assert manifest.read(store.root, wanted.name) == second


def test_an_offer_says_what_has_to_be_read(tmp_path: Path) -> None:
    plain = folder(tmp_path / "plain", "M-Q8_0.gguf")
    cached = cache(tmp_path / "hub", "org/repo", "M-Q8_0.gguf")
    offers = [Local().offer(from_text(str(place))) for place in (plain, cached)]
    assert isinstance(offers[0], Offer)
    assert isinstance(offers[1], Offer)
    assert offers[0].moved_bytes == (plain / "M-Q8_0.gguf").stat().st_size
    # The cache names its files by digest: nothing is read.
    assert (offers[1].moved_bytes, offers[1].expected_s) == (0, 0.0)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nowhere.gguf", "nowhere.gguf does not exist"),
        ("empty", "empty has no GGUF file"),
        ("two", "several files for Q4_K_M: a-Q4_K_M.gguf, b-Q4_K_M.gguf; name one with HF_MODEL_FILE"),
        ("README.md", "README.md is no GGUF file"),
        ("blob", "blob is a GGUF file by another name: link it under one that ends in .gguf"),
        ("half", "lacks parts of m; it has: m-00001-of-00002.gguf"),
        ("half/m-00001-of-00002.gguf", "lacks parts of m"),
    ],
)
def test_what_is_wrong_with_a_path_is_said(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    folder(tmp_path / "two", "a-Q4_K_M.gguf", "b-Q4_K_M.gguf")
    folder(tmp_path / "half", "m-00001-of-00002.gguf")
    (tmp_path / "README.md").write_text("# Read me")
    (tmp_path / "blob").write_bytes((folder(tmp_path / "one", "m.gguf") / "m.gguf").read_bytes())
    assert words in missed(Local(), from_text(str(tmp_path / place)))


def test_only_paths_are_its_business() -> None:
    for wanted in (from_text("smol"), from_repository("org/repo"), from_text("s3://bucket/m.gguf")):
        assert missed(Local(), wanted) == "no path was asked for"


def test_the_home_folder_is_understood(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder(tmp_path / "files", "M-Q8_0.gguf")
    assert brought(Local(), from_text("~/files/M-Q8_0.gguf"), store).name.short == "local/m:q8_0"
