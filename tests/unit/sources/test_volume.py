from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.repositories import brought, folder, left_over, missed
from worker import manifest, storage
from worker.location import Located, locate
from worker.references import from_text
from worker.registration import Registration
from worker.sources.base import Delivery, Offer, SourceFailed
from worker.sources.local import Local
from worker.sources.volume import LOCAL_BYTES_PER_S, VOLUME_BYTES_PER_S, Volume
from worker.storage import Place
from worker.store import Store

WANTED = from_text("smol:135m")


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    """A full store and an empty one."""
    place = folder(tmp_path / "files", "M-Q8_0.gguf")
    full = Store(tmp_path / "volume")
    Registration(place / "M-Q8_0.gguf", template="{{ .Prompt }}").into(full, WANTED.name)
    return full, Store(tmp_path / "container")


def test_a_model_of_another_store_is_taken_over_whole(stores: tuple[Store, Store]) -> None:
    full, empty = stores
    made = brought(Volume(full.root), WANTED, empty)
    assert made.lacks(empty.root) == []
    assert manifest.path_of(empty.root, made.name).read_bytes() == manifest.path_of(full.root, made.name).read_bytes()
    assert all(layer.path(empty.root).samefile(layer.path(full.root)) for layer in made.layers)
    assert not left_over(full, empty)


def test_a_model_known_without_its_quantization_keeps_both_names(tmp_path: Path, stores: tuple[Store, Store]) -> None:
    _, empty = stores
    full = Store(tmp_path / "other")
    wanted = from_text(str(folder(tmp_path / "Repo", "M-Q4_K_M.gguf", "M-Q8_0.gguf")))
    brought(Local(), wanted, full)
    made = brought(Volume(full.root), wanted, empty)
    assert made.name.short == "local/repo:q4_k_m"
    found = locate([empty.root], wanted)
    assert isinstance(found, Located)
    assert found.name == "local/repo:q4_k_m"


@pytest.mark.parametrize(("filesystem", "rate"), [("ext4", LOCAL_BYTES_PER_S), ("fuse", VOLUME_BYTES_PER_S)])
def test_how_fast_it_is_depends_on_the_disk(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch, filesystem: str, rate: float
) -> None:
    monkeypatch.setattr(storage, "place", lambda path: Place(path, filesystem, 1 << 40))
    offer = Volume(stores[0].root).offer(WANTED)
    assert isinstance(offer, Offer)
    assert offer.rate_bytes_per_s == rate
    assert offer.moved_bytes == sum(path.stat().st_size for path in stores[0].root.glob("blobs/*"))


def test_what_it_does_not_have_whole_it_does_not_offer(stores: tuple[Store, Store]) -> None:
    full, empty = stores
    assert "the model is not in the store" in missed(Volume(empty.root, name="local"), WANTED)
    max(full.root.glob("blobs/*"), key=lambda path: path.stat().st_size).unlink()
    assert "is not in the store" in missed(Volume(full.root), WANTED)


def test_a_store_is_not_filled_from_itself(stores: tuple[Store, Store]) -> None:
    full, _ = stores
    offer = Volume(full.root).offer(WANTED)
    assert isinstance(offer, Offer)
    with pytest.raises(SourceFailed, match="the store that is to be filled"):
        offer.bring(Delivery("volume", WANTED, Store(full.root / ".." / "volume"), None, lambda: None))
