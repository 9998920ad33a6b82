from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.fakes.repositories import blobs, brought, cache, left_over, missed
from worker import known_digest
from worker.location import Located, locate
from worker.references import Wanted, from_repository, from_text
from worker.sources.base import Offer
from worker.sources.model_store import ModelStore, snapshot
from worker.store import Store

REPO = "unsloth/SmolLM2-135M-Instruct-GGUF"
FILES = ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "SmolLM2-135M-Instruct-Q8_0.gguf")


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    return tmp_path / "huggingface-cache" / "hub"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.parametrize("spelled", [REPO, REPO.lower(), REPO.upper()])
def test_a_repository_is_found_in_any_case(hub: Path, store: Store, spelled: str) -> None:
    place = cache(hub, spelled, *FILES)
    wanted = from_repository(f"{REPO}:q8_0")
    made = brought(ModelStore(hub), wanted, store)
    assert made.name.short == "hf/unsloth-smollm2-135m-instruct-gguf:q8_0"
    assert made.layers[1].path(store.root).samefile(place / "blobs" / made.layers[1].hex)
    assert made.notes["worker.file"] == FILES[1]
    assert isinstance(locate([store.root], wanted), Located)


def test_the_exact_spelling_comes_first(hub: Path, store: Store) -> None:
    cache(hub, REPO.lower(), FILES[1])
    cache(hub, REPO, FILES[0])
    assert brought(ModelStore(hub), from_repository(REPO), store).name.tag == "q4_k_m"


def test_its_names_are_trusted_for_digests(hub: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cache(hub, REPO, *FILES)
    monkeypatch.setattr(known_digest, "computed", lambda *_: pytest.fail("the file was read"))
    offer = ModelStore(hub).offer(from_repository(REPO))
    assert isinstance(offer, Offer)
    assert offer.moved_bytes == 0
    brought(ModelStore(hub), from_repository(REPO), store)


def test_files_without_links_are_read_once(hub: Path, store: Store, tmp_path: Path) -> None:
    cache(hub, REPO, *FILES, links=False)
    wanted = from_repository(f"{REPO}:Q8_0")
    brought(ModelStore(hub), wanted, store)
    counted: list[int] = []
    path = next(hub.rglob(FILES[1]))
    known_digest.of(path, store.digests, counted.append)
    assert counted == []
    assert tmp_path.exists()


def test_a_registry_name_of_a_repository_is_served_from_it_as_well(hub: Path, store: Store) -> None:
    cache(hub, REPO, *FILES)
    made = brought(ModelStore(hub), from_text(f"hf.co/{REPO}:Q8_0"), store)
    assert made.name.short == f"hf.co/{REPO}:Q8_0"


@pytest.mark.parametrize(
    ("revisions", "asked", "found"),
    [
        (["main"], "main", "main"),
        (["main", "dev"], "dev", "dev"),
        (["dev"], "main", "dev"),
        (["old", "new"], "main", "new"),
    ],
)
def test_which_snapshot_is_taken(hub: Path, revisions: list[str], asked: str, found: str) -> None:
    for age, revision in enumerate(revisions):
        place = cache(hub, REPO, f"M-Q8_0-{revision}.gguf", revision=revision)
        commit = (place / "refs" / revision).read_text()
        os.utime(place / "snapshots" / commit, (age, age))
    taken = snapshot(place, asked)
    assert taken is not None
    assert [path.name for path in taken.iterdir()] == [f"M-Q8_0-{found}.gguf"]


def test_a_snapshot_may_be_named_itself(hub: Path) -> None:
    place = cache(hub, REPO, FILES[0])
    commit = (place / "refs" / "main").read_text()
    assert snapshot(place, commit) == place / "snapshots" / commit


def test_a_reference_that_leads_nowhere_leaves_the_only_snapshot(hub: Path) -> None:
    place = cache(hub, REPO, FILES[0])
    (place / "refs" / "main").write_text("gone\n")
    assert snapshot(place, "main") is not None
    shutil.rmtree(place / "snapshots")
    assert snapshot(place, "main") is None


def broken(hub: Path, how: str) -> Wanted:
    place = cache(hub, REPO, *FILES)
    if how == "links":
        shutil.rmtree(place / "blobs")
    if how == "snapshots":
        shutil.rmtree(place / "snapshots")
    return from_repository(f"{REPO}:Q5_K_M" if how == "nothing" else REPO)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("links", "has no GGUF file"),
        ("snapshots", "has no snapshot of main"),
        ("nothing", "has no Q5_K_M; it has: "),
    ],
)
def test_what_is_missing_is_said(hub: Path, how: str, words: str) -> None:
    assert words in missed(ModelStore(hub), broken(hub, how))


def test_what_it_does_not_have(hub: Path) -> None:
    assert missed(ModelStore(hub), from_repository(REPO)) == f"{REPO} is not in {hub}"
    hub.mkdir(parents=True)
    assert missed(ModelStore(hub), from_repository(REPO)) == f"{REPO} is not in {hub}"
    assert missed(ModelStore(hub), from_text("smol")) == "it has Hugging Face repositories only"


def test_a_download_that_never_ended_is_not_taken(hub: Path, store: Store) -> None:
    place = cache(hub, REPO, FILES[0])
    whole = next((place / "blobs").iterdir())
    whole.write_bytes(whole.read_bytes()[:-200])
    offer = ModelStore(hub).offer(from_repository(REPO))
    assert isinstance(offer, Offer)
    with pytest.raises(ValueError, match="is cut off"):
        brought(ModelStore(hub), from_repository(REPO), store)
    assert not blobs(store)
    assert not left_over(store)
