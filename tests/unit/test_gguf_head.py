"""What is read of a model file before its vocabulary, and what is left unread."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.fakes.tiny_gguf import FLOAT32, STRING, UINT32, write
from worker.gguf_file import read
from worker.gguf_head import OPENING_BYTES, Array, GgufInvalid, opening
from worker.local.engine.store import smollm2_gguf

WORDS = (STRING, ["word"] * 5000)
NUMBERS = {"general.architecture": "llama", "llama.block_count": 32}


def test_the_numbers_before_the_vocabulary_and_its_length(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", NUMBERS | {"tokenizer.ggml.tokens": WORDS, "llama.after": 1}, [])
    assert opening(path) == NUMBERS | {"tokenizer.ggml.tokens": Array(STRING, 5000)}


def test_a_real_model_says_the_same_as_when_it_is_read_whole() -> None:
    path = smollm2_gguf()
    found, whole = opening(path), read(path)
    assert found["general.architecture"] == whole.architecture
    assert found["tokenizer.ggml.tokens"].length == 49152
    assert {key: whole.metadata[key] for key in found} == found


def test_short_lists_of_numbers_are_told(tmp_path: Path) -> None:
    lists = {"llama.heads": (UINT32, [8, 0, 8]), "llama.scale": (FLOAT32, [0.5]), "general.tags": (STRING, ["a", "b"])}
    found = opening(write(tmp_path / "a.gguf", NUMBERS | lists, []))
    assert found["llama.heads"] == (8, 0, 8)
    assert found["llama.scale"] == (0.5,)
    assert found["general.tags"] == Array(STRING, 2)


def test_a_short_vocabulary_does_not_end_the_reading(tmp_path: Path) -> None:
    few = {"tokenizer.ggml.tokens": (STRING, ["word"] * 10), "llama.after": 7}
    assert opening(write(tmp_path / "a.gguf", NUMBERS | few, []))["llama.after"] == 7


def test_a_long_list_need_not_be_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", NUMBERS | {"tokenizer.ggml.merges": (STRING, ["merge"] * 90_000)}, [])
    assert path.stat().st_size > 3 * OPENING_BYTES
    assert opening(path)["tokenizer.ggml.merges"] == Array(STRING, 90_000)


def test_too_much_before_the_vocabulary_is_said_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {"general.license": "x" * OPENING_BYTES, **NUMBERS}, [])
    with pytest.raises(GgufInvalid, match=r"a\.gguf has unreadable metadata, or too much before"):
        opening(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"GGML" + bytes(100),
        struct.pack("<4sIQQ", b"GGUF", 9, 0, 0),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1),
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1 << 60),
        struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 77),
    ],
)
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufInvalid, match=r"a\.gguf"):
        opening(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        opening(tmp_path / "none.gguf")
