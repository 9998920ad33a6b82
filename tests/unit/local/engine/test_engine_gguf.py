from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import tiny_gguf
from worker.local.engine import gguf
from worker.local.engine.gguf import GgufInvalid
from worker.local.engine.store import smollm2_gguf


def test_the_head_of_a_real_model() -> None:
    head = gguf.read(smollm2_gguf())
    assert head.architecture == "llama"
    assert head.parameter_count == 134_515_008
    assert head.file_type == "Q4_1"
    assert head.of_model("context_length") == 8192
    assert head.of_model("pooling_type") is None
    assert head.chat_template.startswith("{% for message in messages %}")
    assert head.metadata["general.languages"] == ["en"]
    assert len(head.metadata["tokenizer.ggml.tokens"]) == 49_152
    assert head.metadata["tokenizer.ggml.token_type"][:3] == [3, 3, 3]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    metadata = {"general.architecture": "tiny", "tiny.flag": True, "tiny.number": 7, "tiny.ratio": 0.5}
    metadata |= {"tiny.words": (tiny_gguf.STRING, ["ä", ""]), "tiny.counts": (tiny_gguf.UINT32, [1, 2, 3])}
    path = tiny_gguf.write(tmp_path / "a.gguf", metadata, [("a", (2, 3), [0.0] * 6), ("b", (4,), [1.0] * 4)])
    head = gguf.read(path)
    assert head.metadata == metadata | {"tiny.words": ["ä", ""], "tiny.counts": [1, 2, 3]}
    assert head.parameter_count == 10
    assert head.of_model("number") == 7


def test_a_file_that_says_nothing_is_of_an_unknown_family(tmp_path: Path) -> None:
    head = gguf.read(tiny_gguf.write(tmp_path / "a.gguf", {}, []))
    assert (head.architecture, head.file_type, head.chat_template, head.parameter_count) == (
        "unknown",
        "unknown",
        "",
        0,
    )


@pytest.mark.parametrize("content", [b"", b"GGU", b"text" * 20])
def test_another_file_has_the_wrong_magic(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufInvalid, match="invalid file magic"):
        gguf.read(path)


@pytest.mark.parametrize("cut", [4, 10, 24, 40, 200])
def test_a_head_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    path = tiny_gguf.embedding_model(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(GgufInvalid, match="unreadable GGUF"):
        gguf.read(path)


def test_weights_that_are_cut_off_do_not_matter_here(tmp_path: Path) -> None:
    path = tiny_gguf.embedding_model(tmp_path / "a.gguf")
    whole = gguf.read(path)
    path.write_bytes(path.read_bytes()[:-1000])
    assert gguf.read(path) == whole


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "a.gguf", {"general.architecture": "one"}, [])
    assert gguf.read(path).architecture == "one"
    tiny_gguf.write(path, {"general.architecture": "another"}, [])
    assert gguf.read(path).architecture == "another"


def test_no_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        gguf.read(tmp_path / "absent.gguf")
