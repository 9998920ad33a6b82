"""The head of a GGUF file: its metadata, its tensors, and how long a whole file is."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from worker.ggml_types import BLOCKS, FILE_TYPES
from worker.gguf_head import Array, GgufInvalid, Head, counts

__all__ = ["Array", "GgufFile", "GgufInvalid", "Tensor", "read"]

# One read takes in most heads; vocabularies of 250,000 words need a second one.
FIRST_READ_BYTES = 4 << 20
HEAD_LIMIT_BYTES = 256 << 20
_DEFAULT_ALIGNMENT = 32
_EMBEDDED_PROJECTOR = ("v.", "mm.", "a.")


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
    def is_projector(self) -> bool:
        """Whether it is the projector of a model in a file of its own."""
        return self.architecture == "clip" or self.metadata.get("general.type") == "mmproj"

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
    version, tensor_count, pair_count = counts(path.name, data)
    head = Head(data)
    try:
        pairs = list(head.pairs(pair_count))
        tensors = tuple(_tensor(head) for _ in range(tensor_count))
    except (KeyError, UnicodeDecodeError, OverflowError) as exc:
        raise GgufInvalid(f"{path.name} has unreadable metadata ({type(exc).__name__}: {exc})") from exc
    metadata = {key: value for key, value, _ in pairs}
    return GgufFile(path, version, metadata, {key: raw for key, _, raw in pairs}, tensors, head.at, size_bytes)


def _tensor(head: Head) -> Tensor:
    name = head.text()
    shape = tuple(head.number("Q") for _ in range(head.number("I")))
    return Tensor(name, shape, head.number("I"), head.number("Q"))
