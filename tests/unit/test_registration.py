from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import tiny_gguf
from worker import manifest
from worker.gguf_file import GgufInvalid
from worker.local.engine.store import smollm2_gguf
from worker.names import ModelName
from worker.progress import Halted, Meter
from worker.registration import Registration, human_number, redressed
from worker.store import Store
from worker.template import TemplateInvalid

NAME = ModelName.parse("hf/org-repo:q4_k_m")
META = {"general.architecture": "llama", "general.file_type": 15, "tokenizer.chat_template": "{{ messages }}"}
TENSORS = [("token_embd.weight", (4, 3), [1.0] * 12)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf.write(tmp_path / "m-Q4_K_M.gguf", META, TENSORS)


@pytest.fixture
def projector(tmp_path: Path) -> Path:
    return tiny_gguf.write(
        tmp_path / "mmproj-F16.gguf", {"general.architecture": "clip"}, [("v.patch_embd.weight", (2,), [0.0, 1.0])]
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def config(store: Store, made: manifest.Manifest) -> dict[str, Any]:
    layer = made.layer("config")
    assert layer is not None
    found: dict[str, Any] = json.loads(layer.path(store.root).read_bytes())
    return found


def text(store: Store, made: manifest.Manifest, kind: str) -> str | None:
    layer = made.layer(kind)
    return layer.path(store.root).read_text() if layer else None


def test_a_model_is_registered_without_being_rewritten(store: Store, model: Path) -> None:
    before = model.stat()
    registered = Registration(model).into(store, NAME)
    made = manifest.read(store.root, NAME)
    assert made == registered.manifest
    assert [layer.kind for layer in made.layers] == ["config", "model"]
    assert made.lacks(store.root) == []
    assert made.layers[1].path(store.root).samefile(model)
    assert (model.stat().st_ino, model.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert config(store, made) == {
        "model_format": "gguf",
        "model_family": "llama",
        "model_families": ["llama"],
        "model_type": "12",
        "file_type": "Q4_K_M",
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(model)}"]},
    }
    assert registered.warnings == ()
    assert list(store.partials.iterdir()) == []


def test_a_digest_that_is_known_is_not_computed(store: Store, model: Path, tmp_path: Path) -> None:
    counted: list[int] = []

    def metered(total: int) -> Meter:
        def halt() -> None:
            counted.append(total)

        return Meter(total, halt=halt)

    Registration(model, sha256=sha256(model)).into(store, NAME, metered)
    assert counted == []
    # A copy: the digest of the original may be remembered beside it.
    unknown = Path(shutil.copy(smollm2_gguf(), tmp_path / "unknown.gguf"))
    Registration(unknown).into(Store(store.root.with_name("other")), NAME, metered)
    assert len(counted) > 10


def test_computing_a_digest_can_be_stopped(store: Store, model: Path) -> None:
    def halt() -> None:
        raise Halted("enough")

    with pytest.raises(Halted):
        Registration(model).into(store, NAME, lambda total: Meter(total, halt=halt))
    assert manifest.read(store.root, NAME) is None


def test_projector_and_template_are_layers_of_their_own(store: Store, model: Path, projector: Path) -> None:
    made = Registration(model, projector=projector, template="{{ .Prompt }}!").into(store, NAME).manifest
    assert [layer.kind for layer in made.layers] == ["config", "model", "projector", "template"]
    assert made.layers[2].hex == sha256(projector)
    assert text(store, made, "template") == "{{ .Prompt }}!"
    without = Registration(model, projector=projector, skip_projector=True).into(store, NAME).manifest
    assert [layer.kind for layer in without.layers] == ["config", "model"]


@pytest.mark.parametrize(
    ("meta", "more", "words"),
    [
        ({}, {}, ["has no chat template: messages are sent as they are; set OLLAMA_TEMPLATE"]),
        ({}, {"template": "{{ .Prompt }}"}, []),
        ({"llama.pooling_type": 1}, {}, []),
        ({"tokenizer.chat_template": "{{ m }}"}, {}, []),
        ({"general.architecture": "gemma4"}, {}, []),
    ],
)
def test_a_model_without_a_template_is_warned_about(
    store: Store, tmp_path: Path, meta: dict[str, Any], more: dict[str, str], words: list[str]
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", {"general.architecture": "llama"} | meta, TENSORS)
    warnings = Registration(path, **more).into(store, NAME).warnings
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


def test_a_projector_inside_cannot_be_left_out_here(store: Store, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", META, [*TENSORS, ("v.patch_embd.weight", (1,), [0.0])])
    (warning,) = Registration(path, skip_projector=True).into(store, NAME).warnings
    assert warning == "m.gguf has its projector inside: only the server can leave it out"


@pytest.mark.parametrize(
    ("architecture", "dialect", "params"),
    [
        ("gemma4", {"renderer": "gemma4", "parser": "gemma4"}, '{"stop": ["<turn|>"]}'),
        ("nemotron_h", {"renderer": "nemotron-3-nano", "parser": "nemotron-3-nano"}, None),
        ("llama", {}, None),
    ],
)
def test_architectures_with_a_format_of_their_own(
    store: Store, tmp_path: Path, architecture: str, dialect: dict[str, str], params: str | None
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", META | {"general.architecture": architecture}, TENSORS)
    made = Registration(path).into(store, NAME).manifest
    found = config(store, made)
    assert {key: found[key] for key in ("renderer", "parser") if key in found} == dialect
    assert text(store, made, "params") == params
    own = Registration(path, template="{{ .Prompt }}").into(store, NAME).manifest
    assert "renderer" not in config(store, own)


def test_what_is_no_whole_model_is_not_registered(store: Store, model: Path, projector: Path, tmp_path: Path) -> None:
    part = tiny_gguf.write(tmp_path / "part.gguf", META | {"split.no": 0, "split.count": 2}, TENSORS)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-20])
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<html>")
    for path, words in ((part, "one of 2 parts"), (cut, "is cut off"), (page, "no GGUF")):
        with pytest.raises(GgufInvalid, match=words):
            Registration(path).into(store, NAME)
    projector.write_bytes(projector.read_bytes()[:-30])
    with pytest.raises(GgufInvalid, match="is cut off"):
        Registration(model, projector=projector).into(store, NAME)
    assert list(manifest.every(store.root)) == []


def test_what_is_no_projector_is_refused_before_anything_is_linked(store: Store, model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        GgufInvalid, match=r"m-Q4_K_M.gguf is no projector: its architecture is llama, a projector's is"
    ):
        Registration(model, projector=model).into(store, NAME)
    assert not store.root.exists()
    # Some say so by their type alone.
    other = {"general.architecture": "vision", "general.type": "mmproj"}
    typed = tiny_gguf.write(tmp_path / "p.gguf", other, [("v.patch_embd.weight", (2,), [0.0, 1.0])])
    made = Registration(model, projector=typed).into(store, NAME).manifest
    assert made.layer("projector") is not None


def test_a_template_the_server_could_not_use_is_refused(store: Store, model: Path) -> None:
    with pytest.raises(TemplateInvalid, match="is not closed"):
        Registration(model, template="{{ .Nope").into(store, NAME)
    assert not store.root.exists()


def test_a_model_is_dressed_anew_without_reading_its_weights(store: Store, model: Path, projector: Path) -> None:
    first = Registration(model, projector=projector, origin="somewhere", file="a/m.gguf").into(store, NAME).manifest
    model.unlink()
    again = redressed(store, first, template="{{ .Prompt }}", skip_projector=False)
    assert again is not None
    assert [layer.kind for layer in again.manifest.layers] == ["config", "model", "projector", "template"]
    bare = redressed(store, again.manifest, template="", skip_projector=True)
    assert bare is not None
    assert [layer.kind for layer in bare.manifest.layers] == ["config", "model"]
    assert bare.manifest.notes == {
        "worker.origin": "somewhere",
        "worker.file": "a/m.gguf",
        "worker.projector-left-out": "true",
    }
    # What was left out has to come from a source again.
    assert redressed(store, bare.manifest, template="", skip_projector=False) is None
    assert redressed(store, bare.manifest, template="x", skip_projector=True) is not None


def test_to_leave_out_a_projector_that_is_not_there_changes_nothing(store: Store, model: Path) -> None:
    made = Registration(model).into(store, NAME).manifest
    bare = redressed(store, made, template="", skip_projector=True)
    assert bare is not None
    assert "worker.projector-left-out" not in bare.manifest.notes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (1500, "2K"),
        (134_515_008, "134.52M"),
        (7_000_000, "7M"),
        (7_600_000_000, "7.6B"),
        (8_000_000_000, "8B"),
    ],
)
def test_counts_are_shown_as_ollama_shows_them(count: int, text: str) -> None:
    assert human_number(count) == text
