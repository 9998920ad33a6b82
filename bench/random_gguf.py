"""A model of any size with random weights, which llama.cpp loads like any other."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALIGNMENT = 32
BLOCK_BYTES = 4 << 20
F32, F16 = 0, 1
VOCABULARY = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
WIDTH, HIDDEN, HEADS = 2048, 8192, 16
SQUARE = ("attn_q", "attn_k", "attn_v", "attn_output")
# Bytes of one layer's matrices.
LAYER_BYTES = 2 * (len(SQUARE) * WIDTH * WIDTH + 3 * WIDTH * HIDDEN)

Tensor = tuple[str, tuple[int, ...], int]


def write(path: Path, size_bytes: int) -> Path:
    """Write a llama-family model of 16-bit weights, of about `size_bytes` and at least one layer (134 MB)."""
    layers = max(1, round(size_bytes / LAYER_BYTES))
    tensors = list(_tensors(layers))
    metadata = _metadata(layers)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    offset = 0
    for name, shape, kind in tensors:
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += _padded(_bytes(shape, kind))
    weights = random.Random(5).randbytes(BLOCK_BYTES)  # noqa: S311 - weights, not secrets
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for number in range(-(-offset // BLOCK_BYTES)):
            # Every block differs, so that one in the wrong place is noticed.
            block = struct.pack("<Q", number) + weights[8:]
            file.write(block[: min(BLOCK_BYTES, offset - number * BLOCK_BYTES)])
    return path


def _tensors(layers: int) -> Iterator[Tensor]:
    yield "token_embd.weight", (WIDTH, len(VOCABULARY)), F16
    yield "output_norm.weight", (WIDTH,), F32
    for layer in range(layers):
        for name in SQUARE:
            yield f"blk.{layer}.{name}.weight", (WIDTH, WIDTH), F16
        for name in ("ffn_gate", "ffn_up"):
            yield f"blk.{layer}.{name}.weight", (WIDTH, HIDDEN), F16
        yield f"blk.{layer}.ffn_down.weight", (HIDDEN, WIDTH), F16
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", (WIDTH,), F32


def _metadata(layers: int) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.file_type": 1,
        "llama.context_length": 512,
        "llama.embedding_length": WIDTH,
        "llama.block_count": layers,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.vocab_size": len(VOCABULARY),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.scores": [0.0] * len(VOCABULARY),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256,
    }


def _bytes(shape: tuple[int, ...], kind: int) -> int:
    size_bytes = 4 if kind == F32 else 2
    for side in shape:
        size_bytes *= side
    return size_bytes


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    """Write one metadata value with its type: text, a number, or a list of one of these."""
    if isinstance(value, list):
        kinds = {str: 8, float: 6, int: 5}
        items = [_text(item) if isinstance(item, str) else _number(item) for item in value]
        return struct.pack("<IIQ", 9, kinds[type(value[0])], len(items)) + b"".join(items)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    return struct.pack("<I", 6 if isinstance(value, float) else 4) + _number(value)


def _number(value: float) -> bytes:
    return struct.pack("<f" if isinstance(value, float) else "<i", value)
