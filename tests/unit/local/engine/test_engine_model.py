from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import tiny_gguf
from worker.local.engine.model import Model
from worker.local.engine.store import ModelMissing, Store, register_gguf
from worker.names import ModelName


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def register(store: Store, tmp_path: Path, metadata: dict[str, Any], extras: dict[str, Any] | None = None) -> Model:
    path = tiny_gguf.write(tmp_path / "made.gguf", {"general.architecture": "tiny", **metadata}, [])
    register_gguf(store.root, "made", path, extras)
    return Model.load(store, ModelName.parse("made"))


@pytest.mark.parametrize(
    ("metadata", "capabilities", "listed"),
    [
        ({}, ["completion"], ["completion"]),
        ({"tiny.pooling_type": 1}, ["embedding"], ["embedding"]),
        ({"tokenizer.chat_template": "{{ tools }}"}, ["tools", "completion"], ["completion"]),
        ({"tokenizer.chat_template": "{{ message.tool_calls }}"}, ["tools", "completion"], ["completion"]),
        ({"tokenizer.chat_template": "<think></think>"}, ["thinking", "completion"], ["completion"]),
        ({"tokenizer.chat_template": "<think>"}, ["completion"], ["completion"]),
    ],
)
def test_the_file_says_what_the_model_can_do(
    store: Store, tmp_path: Path, metadata: dict[str, Any], capabilities: list[str], listed: list[str]
) -> None:
    model = register(store, tmp_path, metadata)
    assert (model.capabilities, model.listed_capabilities) == (capabilities, listed)


def test_the_layers_add_to_every_request(store: Store, tmp_path: Path) -> None:
    example = {"role": "user", "content": "Like this."}
    extras = {"system": "Be brief.", "template": "{{ .Prompt }}", "params": {"top_k": 5}, "messages": [example]}
    model = register(store, tmp_path, {}, extras | {"license": "MIT"})
    assert (model.system, model.template) == ("Be brief.", "{{ .Prompt }}")
    assert (model.options, model.messages, model.licences) == ({"top_k": 5}, [example], ("MIT",))


def test_a_model_without_layers_adds_nothing(store: Store, tmp_path: Path) -> None:
    model = register(store, tmp_path, {})
    assert (model.system, model.template, model.options, model.messages, model.licences) == ("", "", {}, [], ())


def test_the_details_come_from_the_config(store: Store, tmp_path: Path) -> None:
    model = register(store, tmp_path, {"general.file_type": 1, "tiny.context_length": 77, "tiny.embedding_length": 8})
    assert model.details == {
        "parent_model": "",
        "format": "gguf",
        "family": "tiny",
        "families": ["tiny"],
        "parameter_size": "0",
        "quantization_level": "F16",
    }
    assert (model.train_context, model.embedding_length) == (77, 8)


@pytest.mark.parametrize(
    ("architecture", "metadata", "slots"),
    [("tiny", {}, 4), ("qwen35", {}, 1), ("lfm2", {}, 1), ("tiny", {"tiny.pooling_type": 1}, 1)],
)
def test_some_models_have_one_slot_whatever_is_configured(
    store: Store, tmp_path: Path, architecture: str, metadata: dict[str, Any], slots: int
) -> None:
    assert register(store, tmp_path, {**metadata, "general.architecture": architecture}).slots(4) == slots


def test_a_file_that_is_no_gguf_is_a_fault_and_an_absent_one_is_not(store: Store, tmp_path: Path) -> None:
    model = register(store, tmp_path, {})
    model.path.unlink()
    absent = Model.load(store, model.name)
    assert (absent.head, absent.fault, absent.capabilities, absent.train_context) == (None, "", [], 0)
    model.path.write_bytes(b"garbage")
    garbage = Model.load(store, model.name)
    assert (garbage.head, garbage.fault, garbage.capabilities) == (None, "invalid file magic", [])


def test_a_capability_of_the_config_counts(store: Store, tmp_path: Path) -> None:
    model = register(store, tmp_path, {})
    config = store.blob(model.manifest.config_digest)
    config.write_text(json.dumps({**model.config, "capabilities": ["vision"]}))
    assert Model.load(store, model.name).capabilities == ["vision", "completion"]


def test_an_absent_model_is_missing(store: Store) -> None:
    with pytest.raises(ModelMissing):
        Model.load(store, ModelName.parse("absent"))
