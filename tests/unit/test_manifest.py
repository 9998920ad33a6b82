from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker import manifest
from worker.manifest import CONFIG_TYPE, LAYER_PREFIX, MANIFEST_TYPE, Layer, Manifest
from worker.names import ModelName

NAME = ModelName.parse("org/Model:Q4")
HEX = "ab" * 32
CONFIG = Layer(CONFIG_TYPE, f"sha256:{'0' * 64}", 3)
MODEL = Layer(f"{LAYER_PREFIX}model", f"sha256:{HEX}", 5)
NEWER = Layer(f"{LAYER_PREFIX}model", f"sha256:{'cd' * 32}", 7)


def put(models: Path, layers: list[Layer], content: bytes = b"12345") -> None:
    for layer in layers:
        layer.path(models).parent.mkdir(parents=True, exist_ok=True)
        layer.path(models).write_bytes(content)


def written(models: Path, data: bytes, name: ModelName = NAME) -> Path:
    path = manifest.path_of(models, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_manifest_is_read_as_it_is_written(tmp_path: Path) -> None:
    model = Manifest(NAME, (CONFIG, MODEL), {"worker.origin": "here"})
    written(tmp_path, model.body())
    assert manifest.read(tmp_path, NAME) == model
    assert json.loads(model.body()) == {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": f"sha256:{'0' * 64}", "size": 3},
        "layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{HEX}", "size": 5}],
        "annotations": {"worker.origin": "here"},
    }
    assert "annotations" not in json.loads(Manifest(NAME, (CONFIG, MODEL)).body())


def test_layers_by_kind() -> None:
    model = Manifest(NAME, (CONFIG, MODEL, NEWER, MODEL))
    assert [layer.kind for layer in model.layers] == ["config", "model", "model", "model"]
    assert Manifest(NAME, (CONFIG, MODEL, NEWER)).layer("model") == NEWER
    assert model.layer("projector") is None
    assert model.size_bytes == 15
    assert MODEL.hex == HEX


def test_what_a_model_lacks_is_said(tmp_path: Path) -> None:
    put(tmp_path, [MODEL, NEWER])
    unsized = Layer(NEWER.media_type, NEWER.digest, 0)
    assert Manifest(NAME, (MODEL, unsized)).lacks(tmp_path) == []
    assert Manifest(NAME, (CONFIG, MODEL, NEWER)).lacks(tmp_path) == [
        "sha256:000000000000 is not in the store",
        "sha256:cdcdcdcdcdcd has 5 of 7 bytes",
    ]


def test_no_manifest_is_none(tmp_path: Path) -> None:
    assert manifest.read(tmp_path, NAME) is None
    written(tmp_path, b"{}", ModelName("a", "b", "c", "d"))
    assert manifest.read(tmp_path / "manifests" / "a" / "b" / "c" / "d", NAME) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b"\xff", "utf-8"),
        (b"[]", "names nothing"),
        ({}, "names nothing"),
        ({"layers": [{"digest": f"sha256:{HEX}"}]}, "without media type or digest"),
        ({"layers": ["x"]}, "without media type or digest"),
        ({"layers": [{"mediaType": "m", "digest": f"sha256:{HEX}", "size": "many"}]}, "invalid literal"),
        ({"layers": [{"mediaType": "m", "digest": "sha256:../../../etc/passwd"}]}, "is no digest"),
        ({"layers": [{"mediaType": "m", "digest": f"md5:{HEX}"}]}, "is no digest"),
    ],
)
def test_what_cannot_be_understood_is_an_error(tmp_path: Path, content: Any, words: str) -> None:
    written(tmp_path, content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ValueError, match=words):
        manifest.read(tmp_path, NAME)


def test_a_manifest_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    manifest.path_of(tmp_path, NAME).mkdir(parents=True)
    with pytest.raises(ValueError, match="Q4: Is a directory"):
        manifest.read(tmp_path, NAME)


@pytest.mark.parametrize(
    ("there", "asked", "found"),
    [
        (["org/Model:Q4"], "org/Model:Q4", "org/Model:Q4"),
        (["org/Model:Q4"], "ORG/model:q4", "org/Model:Q4"),
        (["org/Model:Q4", "org/model:q4"], "org/model:q4", "org/model:q4"),
        (["org/Model:Q4"], "org/Model:Q8", None),
        (["org/Model:Q4"], "other/Model:Q4", None),
        ([], "smol", None),
    ],
)
def test_names_are_found_without_regard_to_case(
    tmp_path: Path, there: list[str], asked: str, found: str | None
) -> None:
    for text in there:
        written(tmp_path, Manifest(NAME, (MODEL,)).body(), ModelName.parse(text))
    name = manifest.spelled(tmp_path, ModelName.parse(asked))
    assert (name.short if name else None) == found


def test_every_model_that_can_be_understood_is_listed(tmp_path: Path) -> None:
    body = Manifest(NAME, (MODEL,)).body()
    for text in ("b:1", "a:2", "a:1", "hf.co/org/x:Q4"):
        written(tmp_path, body, ModelName.parse(text))
    written(tmp_path, b"broken", ModelName.parse("c:1"))
    (tmp_path / "manifests" / "registry.ollama.ai" / "library" / "a" / "not a tag").write_bytes(body)
    (tmp_path / "manifests" / "stray").write_bytes(body)
    assert [model.name.short for model in manifest.every(tmp_path)] == ["hf.co/org/x:Q4", "a:1", "a:2", "b:1"]
    assert list(manifest.every(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    ("there", "name", "spelled"),
    [
        ([], "hf.co/Org/Repo:Q8_0", "hf.co/Org/Repo:Q8_0"),
        (["local/first:q8_0"], "hf.co/Org/Repo:Q8_0", "hf.co/Org/Repo:q8_0"),
        (["local/first:q8_0", "other:Q8_0"], "hf.co/Org/Repo:Q8_0", "hf.co/Org/Repo:Q8_0"),
        (["HF.co/org/x"], "hf.co/Org/Repo:Q8_0", "HF.co/org/Repo:Q8_0"),
        (["m:q8_0x"], "m:Q8_0", "m:Q8_0"),
    ],
)
def test_a_name_is_spelled_as_the_store_spells_its_parts(
    tmp_path: Path, there: list[str], name: str, spelled: str
) -> None:
    for other in there:
        path = manifest.path_of(tmp_path, ModelName.parse(other))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    assert manifest.in_the_spelling_of(tmp_path, ModelName.parse(name)).short == spelled
