"""The head of a GGUF file: its metadata, its tensors, and how long a whole file is."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from worker.ggml_types import BLOCKS, FILE_TYPES

MAGIC = b"GGUF"
# One read takes in most heads; vocabularies of 250,000 words need a second one.
FIRST_READ_BYTES = 4 << 20
HEAD_LIMIT_BYTES = 256 << 20
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_EMBEDDED_PROJECTOR = ("v.", "mm.", "a.")


class GgufInvalid(ValueError):
    """The file is no GGUF that can be read, or not a whole one."""


@dataclass(frozen=True)
class Array:
    """An array in the metadata, which is not unpacked: vocabularies are long and nobody here needs them."""

    item_type: int
    length: int


@dataclass(frozen=True)
class Tensor:
    """One tensor: its name, shape, ggml type, and where it begins in the data part, in bytes."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def size_bytes(self) -> int | None:
        """How long it is, or None for a type nobody knew when this was written."""
        if self.type not in BLOCKS:
            return None
        per_block, block_bytes = BLOCKS[self.type]
        return prod(self.shape) // per_block * block_bytes


@dataclass(frozen=True)
class GgufFile:
    """A GGUF's head. `pairs` holds each metadata entry as it stands in the file, key and type included."""

    path: Path
    version: int
    metadata: dict[str, Any]
    pairs: dict[str, bytes]
    tensors: tuple[Tensor, ...]
    head_bytes: int
    size_bytes: int

    @property
    def architecture(self) -> str:
        """The model family, `unknown` when the file does not say."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def file_type(self) -> str:
        """The quantization's name, `unknown` when the file does not say."""
        return FILE_TYPES.get(self.metadata.get("general.file_type", -1), "unknown")

    @property
    def chat_template(self) -> str:
        """The Jinja template of the model's chat format, or ""."""
        return str(self.metadata.get("tokenizer.chat_template", ""))

    @property
    def context_length(self) -> int:
        """How many tokens the model was made for, 0 when the file does not say."""
        return int(self.metadata.get(f"{self.architecture}.context_length", 0))

    @property
    def pooling(self) -> bool:
        """Whether it makes embeddings and no text."""
        return f"{self.architecture}.pooling_type" in self.metadata

    @property
    def embedded_projector(self) -> bool:
        """Whether the file carries a projector among its own tensors."""
        return any(tensor.name.startswith(_EMBEDDED_PROJECTOR) for tensor in self.tensors)

    @property
    def split_count(self) -> int:
        """How many files the model is split into, 0 or 1 when it is not."""
        return int(self.metadata.get("split.count", 0))

    @cached_property
    def parameter_count(self) -> int:
        """How many weights the tensors have."""
        return sum(prod(tensor.shape) for tensor in self.tensors)

    @property
    def alignment(self) -> int:
        """What tensors are aligned to, in bytes."""
        return int(self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT))

    @property
    def data_start(self) -> int:
        """Where the tensors' data begin."""
        return -(-self.head_bytes // self.alignment) * self.alignment

    def require_whole(self) -> None:
        """Raise GgufInvalid when the file ends before its last tensor does."""
        for tensor in self.tensors:
            size_bytes = tensor.size_bytes
            end = self.data_start + tensor.offset + (size_bytes or 0)
            if end > self.size_bytes:
                raise GgufInvalid(
                    f"{self.path.name} is cut off: it has {self.size_bytes:,} bytes, {tensor.name} ends at byte {end:,}"
                )


def read(path: Path) -> GgufFile:
    """Read the head of `path`.

    Raises:
        GgufInvalid: it is no GGUF of version 2 or 3.
        OSError: it cannot be read.
    """
    size_bytes = path.stat().st_size
    wanted = FIRST_READ_BYTES
    with path.open("rb", buffering=0) as file:
        while True:
            file.seek(0)
            data = file.read(min(wanted, HEAD_LIMIT_BYTES))
            try:
                return _parse(path, data, size_bytes)
            except (struct.error, IndexError) as exc:
                if len(data) < wanted:
                    raise GgufInvalid(f"{path.name} ends within its metadata") from exc
            wanted *= 4


def _parse(path: Path, data: bytes, size_bytes: int) -> GgufFile:
    if data[:4] != MAGIC:
        raise GgufInvalid(f"{path.name} is no GGUF file")
    version, tensor_count, pair_count = struct.unpack_from("<IQQ", data, 4)
    if version not in {2, 3}:
        raise GgufInvalid(f"{path.name} has GGUF version {version & 0xFFFF or version >> 24}; 2 and 3 can be read")
    head = _Head(data)
    try:
        pairs = list(head.pairs(pair_count))
        tensors = tuple(head.tensor() for _ in range(tensor_count))
    except (KeyError, UnicodeDecodeError, OverflowError) as exc:
        raise GgufInvalid(f"{path.name} has unreadable metadata ({type(exc).__name__}: {exc})") from exc
    metadata = {key: value for key, value, _ in pairs}
    return GgufFile(path, version, metadata, {key: raw for key, _, raw in pairs}, tensors, head.at, size_bytes)


class _Head:
    """A place in the head that moves on as values are taken; running over the end raises struct.error or IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 24

    def pairs(self, count: int) -> Iterator[tuple[str, Any, bytes]]:
        for _ in range(count):
            start = self.at
            key = self._text()
            value = self._value(self._number("I"))
            yield key, value, self._data[start : self.at]

    def tensor(self) -> Tensor:
        name = self._text()
        shape = tuple(self._number("Q") for _ in range(self._number("I")))
        return Tensor(name, shape, self._number("I"), self._number("Q"))

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self.at)
        self.at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        end = self.at + 8 + self._number("Q")
        if end > len(self._data):
            raise IndexError
        text = self._data[self.at : end].decode("utf-8", "replace")
        self.at = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        item_type, length = self._number("I"), self._number("Q")
        if item_type == _STRING:
            self._skip_texts(length)
        elif item_type == _ARRAY:
            for _ in range(length):
                self._value(_ARRAY)
        else:
            self.at += length * struct.calcsize(_SCALARS[item_type])
        if self.at > len(self._data):
            raise IndexError
        return Array(item_type, length)

    def _skip_texts(self, count: int) -> None:
        unpack, data, at = struct.Struct("<Q").unpack_from, self._data, self.at
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self.at = at
