from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import tiny_gguf
from worker.local.engine import store as store_module
from worker.local.engine.gguf import GgufInvalid
from worker.local.engine.store import ModelMissing, Store, human_number, register_gguf, smollm2_gguf
from worker.names import ModelName, NameInvalid


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return tiny_gguf.embedding_model(tmp_path / "files" / "tiny.gguf")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def manifest_of(models: Path, *parts: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(models.joinpath("manifests", *parts).read_bytes())
    return content


def test_a_registered_model_has_the_layout_of_ollama(models: Path, model_file: Path) -> None:
    assert register_gguf(models, "tiny", model_file) == "tiny:latest"
    manifest = manifest_of(models, "registry.ollama.ai", "library", "tiny", "latest")
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    (layer,) = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.ollama.image.model"
    assert layer["size"] == model_file.stat().st_size
    for entry in (layer, manifest["config"]):
        blob = models / "blobs" / entry["digest"].replace(":", "-")
        assert f"sha256:{sha256(blob)}" == entry["digest"]
        assert blob.stat().st_size == entry["size"]


def test_the_config_describes_the_file(models: Path, model_file: Path) -> None:
    register_gguf(models, "tiny", model_file)
    digest = manifest_of(models, "registry.ollama.ai", "library", "tiny", "latest")["config"]["digest"]
    config = json.loads((models / "blobs" / digest.replace(":", "-")).read_bytes())
    assert config["model_format"] == "gguf"
    assert (config["model_family"], config["model_families"]) == ("llama", ["llama"])
    assert (config["model_type"], config["file_type"]) == ("16K", "F32")
    assert (config["architecture"], config["os"]) == ("amd64", "linux")
    assert config["rootfs"] == {"type": "layers", "diff_ids": [f"sha256:{sha256(model_file)}"]}


def test_a_full_name_decides_the_place(models: Path, model_file: Path) -> None:
    assert register_gguf(models, "hf.co/me/tiny:F32", model_file) == "hf.co/me/tiny:F32"
    assert (models / "manifests" / "hf.co" / "me" / "tiny" / "F32").is_file()


def test_the_file_is_linked_not_copied(models: Path, model_file: Path) -> None:
    register_gguf(models, "tiny", model_file)
    blob = models / "blobs" / f"sha256-{sha256(model_file)}"
    assert blob.samefile(model_file)


@pytest.mark.parametrize(("broken", "is_link"), [(["link"], True), (["link", "symlink"], False)])
def test_where_links_do_not_work_something_else_does(
    models: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch, broken: list[str], *, is_link: bool
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("not on this file system")

    for name in broken:
        monkeypatch.setattr(os, name, refuse)
    register_gguf(models, "tiny", model_file)
    blob = models / "blobs" / f"sha256-{sha256(model_file)}"
    assert blob.is_symlink() == is_link
    assert blob.read_bytes() == model_file.read_bytes()


def test_a_store_that_cannot_be_written_is_an_error(
    models: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("disk full")

    for module, name in ((os, "link"), (os, "symlink"), (shutil, "copyfile")):
        monkeypatch.setattr(module, name, refuse)
    with pytest.raises(OSError, match="cannot be created"):
        register_gguf(models, "tiny", model_file)
    assert list(Store(models).manifests()) == []


def test_registering_at_once_from_several_processes_leaves_one_whole_model(models: Path, model_file: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        names = list(pool.map(register_gguf, [models] * 8, ["tiny"] * 8, [model_file] * 8))
    assert names == ["tiny:latest"] * 8
    assert sorted(path.name[:7] for path in (models / "blobs").iterdir()) == ["sha256-", "sha256-"]
    assert Store(models).manifest(ModelName.parse("tiny")).layers[0][1] == f"sha256:{sha256(model_file)}"


def test_registering_twice_changes_nothing(models: Path, model_file: Path) -> None:
    register_gguf(models, "tiny", model_file)
    before = {path: path.read_bytes() for path in models.rglob("*") if path.is_file()}
    register_gguf(models, "tiny", model_file)
    assert {path: path.read_bytes() for path in models.rglob("*") if path.is_file()} == before


def test_the_digest_is_remembered_until_the_file_changes(
    models: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_gguf(models, "tiny", model_file)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "HASH_CHUNK_BYTES", 0)  # hashing would now find nothing to hash
        register_gguf(models, "again", model_file)
    assert Store(models).manifest(ModelName.parse("again")).layers[0][1] == f"sha256:{sha256(model_file)}"
    model_file.unlink()
    tiny_gguf.embedding_model(model_file, context=32)
    register_gguf(models, "changed", model_file)
    assert Store(models).manifest(ModelName.parse("changed")).layers[0][1] == f"sha256:{sha256(model_file)}"


def test_extras_become_layers(models: Path, model_file: Path) -> None:
    register_gguf(models, "tiny", model_file, {"system": "Be brief.", "params": {"stop": ["x"]}})
    layers = dict(Store(models).manifest(ModelName.parse("tiny")).layers)
    store = Store(models)
    assert store.blob(layers["system"]).read_text() == "Be brief."
    assert json.loads(store.blob(layers["params"]).read_text()) == {"stop": ["x"]}


def test_only_a_gguf_with_a_proper_name_is_registered(models: Path, model_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no model")
    with pytest.raises(GgufInvalid):
        register_gguf(models, "tiny", text)
    with pytest.raises(NameInvalid):
        register_gguf(models, "../tiny", model_file)
    assert not models.exists()


def test_the_store_finds_a_name_whatever_its_case(models: Path, model_file: Path) -> None:
    register_gguf(models, "Me/Tiny:F32", model_file)
    assert Store(models).manifest(ModelName.parse("mE/tINY:f32")).name.short == "Me/Tiny:F32"


def test_an_exact_name_wins_over_another_case(models: Path, model_file: Path) -> None:
    for name in ("TINY", "tiny"):
        register_gguf(models, name, model_file)
    assert Store(models).manifest(ModelName.parse("tiny")).name.model == "tiny"
    assert Store(models).manifest(ModelName.parse("TINY")).name.model == "TINY"


def test_a_manifest_knows_its_digest_size_and_time(models: Path, model_file: Path) -> None:
    register_gguf(models, "tiny", model_file)
    manifest = Store(models).manifest(ModelName.parse("tiny"))
    path = models / "manifests" / manifest.name.path
    assert manifest.digest == sha256(path)
    assert manifest.size > model_file.stat().st_size
    assert manifest.modified.timestamp() == pytest.approx(path.stat().st_mtime)


def test_listing_leaves_out_what_cannot_be_read(models: Path, model_file: Path) -> None:
    register_gguf(models, "tiny", model_file)
    broken = models / "manifests" / "registry.ollama.ai" / "library" / "broken"
    broken.mkdir()
    (broken / "latest").write_text("{")
    (broken / "not a tag").write_text("{}")
    assert [manifest.name.short for manifest in Store(models).manifests()] == ["tiny:latest"]


def test_an_empty_place_is_an_empty_store(models: Path) -> None:
    assert list(Store(models).manifests()) == []
    with pytest.raises(ModelMissing):
        Store(models).manifest(ModelName.parse("tiny"))


def test_deleting_removes_the_manifest_and_blobs_nobody_else_uses(models: Path, model_file: Path) -> None:
    register_gguf(models, "one", model_file, {"system": "only mine"})
    register_gguf(models, "two", model_file)
    store = Store(models)
    store.delete(ModelName.parse("one"))
    assert [manifest.name.short for manifest in store.manifests()] == ["two:latest"]
    assert len(list((models / "blobs").iterdir())) == 2
    store.delete(ModelName.parse("two"))
    assert list((models / "blobs").iterdir()) == []
    assert model_file.is_file()
    with pytest.raises(ModelMissing):
        store.delete(ModelName.parse("two"))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (12, "12"),
        (999, "999"),
        (16_448, "16K"),
        (134_515_008, "134.52M"),
        (7_000_000, "7M"),
        (7_600_000_000, "7.6B"),
        (8 * 10**9, "8B"),
    ],
)
def test_weights_are_counted_as_ollama_shows_them(count: int, text: str) -> None:
    assert human_number(count) == text


def test_the_small_model_is_found_without_importing_its_package() -> None:
    assert smollm2_gguf().name.endswith(".gguf")
