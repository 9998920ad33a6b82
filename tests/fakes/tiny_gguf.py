"""GGUF files made for tests: a random embedding model of a few kilobytes, and an existing model with other metadata."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ALIGNMENT = 32
WIDTH, LAYERS, HEADS = 32, 1, 2
Tensor = tuple[str, tuple[int, ...], list[float]]
Array = tuple[int, list[Any]]
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
_FORMS = {UINT32: "<I", 5: "<i", FLOAT32: "<f", BOOL: "<?", 10: "<Q"}


def write(path: Path, metadata: Mapping[str, Any], tensors: list[Tensor]) -> Path:
    """Write a GGUF with 32-bit tensors; metadata is str, bool, int, float, or (GGUF type, list)."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(_text(key) + _typed(value) for key, value in metadata.items())
    data = b""
    for name, shape, values in tensors:
        place = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        head += _text(name) + place
        data += _padded(struct.pack(f"<{len(values)}f", *values))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_padded(head) + data)
    return path


def embedding_model(path: Path, context: int = 64) -> Path:
    """Write a llama-family model with mean pooling and random weights: Ollama takes it for an embedding model."""
    dice = random.Random(7)  # noqa: S311 - weights, not secrets
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    size = len(vocabulary)

    def tensor(name: str, *shape: int) -> Tensor:
        count = 1
        for side in shape:
            count *= side
        ones = len(shape) == 1
        return name, shape, [1.0 if ones else dice.gauss(0, 0.2) for _ in range(count)]

    metadata = {
        "general.architecture": "llama",
        "general.file_type": 0,
        "llama.context_length": context,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.vocab_size": size,
        "llama.pooling_type": 1,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": (STRING, vocabulary),
        "tokenizer.ggml.scores": (FLOAT32, [0.0] * size),
        "tokenizer.ggml.token_type": (5, [2, 3, 3] + [6] * 256),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tensors = [tensor("token_embd.weight", WIDTH, size), tensor("output_norm.weight", WIDTH)]
    for layer in range(LAYERS):
        square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        tensors += [tensor(f"blk.{layer}.{name}.weight", WIDTH, WIDTH) for name in square]
        tensors += [tensor(f"blk.{layer}.{name}.weight", WIDTH) for name in ("attn_norm", "ffn_norm")]
    return write(path, metadata, tensors)


def retemplated(source: Path, target: Path, template: str) -> Path:
    """Copy a GGUF, with another chat template as its last metadata entry but the weights untouched."""
    raw = source.read_bytes()
    key = _text("tokenizer.chat_template")
    start = raw.index(key)
    (length,) = struct.unpack_from("<Q", raw, start + len(key) + 4)
    end = start + len(key) + 4 + 8 + length
    head_end, data_start = _borders(raw)
    head = raw[:start] + key + struct.pack("<I", STRING) + _text(template) + raw[end:head_end]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_padded(head) + raw[data_start:])
    return target


def _borders(raw: bytes) -> tuple[int, int]:
    """Return where the head of a GGUF ends, and where its weights begin."""
    _, _, tensors, pairs = struct.unpack_from("<4sIQQ", raw)
    at = 24
    for _ in range(pairs):
        at = _skip_text(raw, at)
        at = _skip_value(raw, at + 4, struct.unpack_from("<I", raw, at)[0])
    for _ in range(tensors):
        at = _skip_text(raw, at)
        at += 4 + 8 * struct.unpack_from("<I", raw, at)[0] + 4 + 8
    return at, -(-at // ALIGNMENT) * ALIGNMENT


def _skip_text(raw: bytes, at: int) -> int:
    return at + 8 + int(struct.unpack_from("<Q", raw, at)[0])


def _skip_value(raw: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return _skip_text(raw, at)
    if kind != ARRAY:
        return at + struct.calcsize(_FORMS[kind])
    item, count = struct.unpack_from("<IQ", raw, at)
    at += 12
    if item != STRING:
        return at + int(count) * struct.calcsize(_FORMS[item])
    for _ in range(count):
        at = _skip_text(raw, at)
    return at


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: Any) -> bytes:
    if isinstance(value, tuple):
        kind, items = value
        body = [_text(item) if kind == STRING else struct.pack(_FORMS[kind], item) for item in items]
        return struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(body)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    kind = BOOL if isinstance(value, bool) else UINT32 if isinstance(value, int) else FLOAT32
    return struct.pack("<I", kind) + struct.pack(_FORMS[kind], value)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)
