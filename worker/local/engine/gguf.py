"""The head of a GGUF file: its metadata and how many weights follow."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import IO, Any

MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# llama.cpp's llama_ftype, in the spelling of `ollama show`.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "BF16",
}  # fmt: skip


class GgufInvalid(ValueError):
    """The file is no GGUF that can be read."""


@dataclass(frozen=True)
class Gguf:
    """Metadata by key, arrays as lists, and the number of weights."""

    metadata: dict[str, Any]
    parameter_count: int

    @property
    def architecture(self) -> str:
        """Return the model family, `unknown` when the file does not say."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def file_type(self) -> str:
        """Return the quantization's name."""
        return FILE_TYPES.get(self.metadata.get("general.file_type", -1), "unknown")

    @property
    def chat_template(self) -> str:
        """Return the Jinja template of the model's chat format, or nothing."""
        return str(self.metadata.get("tokenizer.chat_template", ""))

    def of_model(self, key: str) -> Any:
        """Return the value of `<architecture>.<key>`, None when absent."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read(path: Path) -> Gguf:
    """Read the head of `path`, remembered until the file changes; raise GgufInvalid when it is no GGUF."""
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: Path, _size: int, _mtime_ns: int) -> Gguf:
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise GgufInvalid("invalid file magic")
        try:
            _version, tensors, pairs = struct.unpack("<IQQ", file.read(20))
            metadata = dict(_pair(file) for _ in range(pairs))
            weights = sum(_tensor_size(file) for _ in range(tensors))
        except (struct.error, UnicodeDecodeError, KeyError, MemoryError) as error:
            raise GgufInvalid(f"unreadable GGUF: {error}") from error
    return Gguf(metadata, weights)


def _number(file: IO[bytes], form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0]


def _text(file: IO[bytes]) -> str:
    return file.read(_number(file, "Q")).decode("utf-8", "replace")


def _pair(file: IO[bytes]) -> tuple[str, Any]:
    key = _text(file)
    return key, _value(file, _number(file, "I"))


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        return _number(file, _SCALARS[kind])
    item, count = _number(file, "I"), _number(file, "Q")
    if item in (_STRING, _ARRAY):
        return [_value(file, item) for _ in range(count)]
    form = f"<{count}{_SCALARS[item]}"
    return list(struct.unpack(form, file.read(struct.calcsize(form))))


def _tensor_size(file: IO[bytes]) -> int:
    _text(file)
    dimensions = _number(file, "I")
    shape = struct.unpack(f"<{dimensions}Q", file.read(8 * dimensions))
    _number(file, "I")
    _number(file, "Q")
    return prod(shape)
