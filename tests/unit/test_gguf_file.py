from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.fakes import tiny_gguf
from worker import gguf_file
from worker.ggml_types import BLOCKS, FILE_TYPES
from worker.gguf_file import Array, GgufInvalid, read
from worker.local.engine.store import smollm2_gguf

META = {
    "general.architecture": "llama",
    "general.file_type": 15,
    "llama.context_length": 4096,
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.ggml.tokens": (tiny_gguf.STRING, ["a", "bc", ""]),
    "tokenizer.ggml.scores": (tiny_gguf.FLOAT32, [0.5, 1.0]),
    "general.temperature": 0.5,
    "general.draft": True,
}
TENSORS = [("token_embd.weight", (4, 3), [float(n) for n in range(12)]), ("output_norm.weight", (4,), [1.0] * 4)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf.write(tmp_path / "m.gguf", META, TENSORS)


def test_a_head_is_read(model: Path) -> None:
    head = read(model)
    assert (head.architecture, head.file_type, head.context_length) == ("llama", "Q4_K_M", 4096)
    assert head.chat_template == "{{ messages }}"
    assert head.metadata["tokenizer.ggml.tokens"] == Array(tiny_gguf.STRING, 3)
    assert head.metadata["tokenizer.ggml.scores"] == Array(tiny_gguf.FLOAT32, 2)
    assert head.metadata["general.temperature"] == 0.5
    assert head.metadata["general.draft"] is True
    assert [(t.name, t.shape, t.size_bytes) for t in head.tensors] == [
        ("token_embd.weight", (4, 3), 48),
        ("output_norm.weight", (4,), 16),
    ]
    assert head.parameter_count == 16
    assert model.read_bytes()[head.data_start :][:48] == struct.pack("<12f", *range(12))
    assert (head.split_count, head.pooling, head.embedded_projector) == (0, False, False)
    head.require_whole()


def test_the_pairs_are_as_they_stand_in_the_file(model: Path) -> None:
    head = read(model)
    raw = model.read_bytes()
    assert b"".join(head.pairs.values()) == raw[24 : 24 + sum(map(len, head.pairs.values()))]


def test_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its head has 1.8 MB: with small first reads it takes several.
    monkeypatch.setattr(gguf_file, "FIRST_READ_BYTES", 1 << 10)
    path = smollm2_gguf()
    head = read(path)
    assert (head.architecture, head.file_type, head.parameter_count) == ("llama", "Q4_1", 134_515_008)
    assert (head.context_length, len(head.tensors)) == (8192, 272)
    assert "im_start" in head.chat_template
    last = max(head.tensors, key=lambda tensor: tensor.offset)
    assert head.data_start + last.offset + (last.size_bytes or 0) == path.stat().st_size
    head.require_whole()


def test_a_file_that_says_little(tmp_path: Path) -> None:
    head = read(tiny_gguf.write(tmp_path / "m.gguf", {}, []))
    assert (head.architecture, head.file_type, head.chat_template) == ("unknown", "unknown", "")
    assert (head.context_length, head.parameter_count, head.alignment) == (0, 0, 32)
    head.require_whole()


@pytest.mark.parametrize("name", ["v.patch_embd.weight", "mm.0.weight", "a.conv.weight"])
def test_a_projector_inside(tmp_path: Path, name: str) -> None:
    head = read(tiny_gguf.write(tmp_path / "m.gguf", {"general.architecture": "qwen35"}, [(name, (1,), [0.0])]))
    assert head.embedded_projector


def test_an_embedding_model(tmp_path: Path) -> None:
    assert read(tiny_gguf.embedding_model(tmp_path / "m.gguf")).pooling


def test_a_file_that_is_cut_off_in_its_weights_is_found_out(model: Path) -> None:
    raw = model.read_bytes()
    end = len(raw) - 16  # the padding of the last tensor is not needed
    model.write_bytes(raw[:end])
    read(model).require_whole()
    model.write_bytes(raw[: end - 1])
    with pytest.raises(GgufInvalid, match=f"m.gguf is cut off: it has {end - 1} bytes, output_norm.weight ends at"):
        read(model).require_whole()


def test_a_type_nobody_knows_is_not_judged(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(BLOCKS, 0)
    raw = model.read_bytes()
    head = read(model)
    assert head.tensors[0].size_bytes is None
    model.write_bytes(raw[: head.data_start + head.tensors[1].offset])
    read(model).require_whole()


def test_a_head_that_is_cut_off_anywhere_is_no_model(model: Path) -> None:
    raw = model.read_bytes()
    for end in range(read(model).head_bytes):
        model.write_bytes(raw[:end])
        with pytest.raises(GgufInvalid):
            read(model)


def big_endian(version: int) -> bytes:
    return struct.pack(">4sIQQ", b"GGUF", version, 0, 0)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no GGUF"),
        (b"<html>not found</html>", "no GGUF"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "GGUF version 1; 2 and 3"),
        (big_endian(3), "GGUF version 3; 2 and 3"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99), "unreadable metadata"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1 << 63), "ends within its metadata"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0), "ends within its metadata"),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 60),
            "ends within its metadata",
        ),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, raw: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(GgufInvalid, match=words):
        read(path)


def test_arrays_of_arrays_are_passed_over(tmp_path: Path) -> None:
    inner = struct.pack("<IQ2I", 4, 2, 7, 8) + struct.pack("<IQ", 8, 1) + struct.pack("<Q2s", 2, b"ab")
    pair = struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 2) + inner
    path = tmp_path / "m.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + pair)
    assert read(path).metadata == {"k": Array(9, 2)}


def test_the_tables_are_in_themselves_consistent() -> None:
    assert all(weights > 0 and size > 0 for weights, size in BLOCKS.values())
    assert len(set(FILE_TYPES.values())) == len(FILE_TYPES)
    # Bits per weight: what a name says is about what it takes.
    for number, bits in ((2, 4.5), (8, 8.5), (12, 4.5), (14, 6.5625), (30, 16)):
        weights, size = BLOCKS[number]
        assert size * 8 / weights == bits
