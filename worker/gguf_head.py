"""The head of a GGUF file as it stands in the file: pairs of keys and values, and what comes before the vocabulary."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
# Writers put what describes the weights before the vocabulary, which is most of a head.
OPENING_BYTES = 256 << 10
_FEW = 4096
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GgufInvalid(ValueError):
    """The file is no GGUF that can be read, or not a whole one."""


@dataclass(frozen=True)
class Array:
    """An array in the metadata, which is not unpacked: vocabularies are long and nobody here needs them."""

    item_type: int
    length: int


def counts(name: str, data: bytes) -> tuple[int, int, int]:
    """Return version, number of tensors and number of pairs from the beginning of the file `name`.

    Raises:
        GgufInvalid: it is no GGUF of version 2 or 3.
        struct.error: `data` is too short to say.
    """
    if data[:4] != MAGIC:
        raise GgufInvalid(f"{name} is no GGUF file")
    version, tensor_count, pair_count = struct.unpack_from("<IQQ", data, 4)
    if version not in {2, 3}:
        raise GgufInvalid(f"{name} has GGUF version {version & 0xFFFF or version >> 24}; 2 and 3 can be read")
    return version, tensor_count, pair_count


def opening(path: Path) -> dict[str, Any]:
    """Return the metadata of `path` up to the first long list, which is the tokenizer's, in a tenth of a millisecond.

    Short lists of numbers are tuples here; other lists are Arrays, the last one included.

    Raises:
        GgufInvalid: it is no GGUF, or says nothing about its weights in its first 256 KiB.
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        data = file.read(OPENING_BYTES)
    found: dict[str, Any] = {}
    try:
        _, _, pair_count = counts(path.name, data)
        for key, value, raw in Head(data, whole=False).pairs(pair_count):
            found[key] = _unpacked(value, raw)
            if isinstance(value, Array) and value.length > _FEW:
                return found
    except (struct.error, IndexError, KeyError) as exc:
        raise GgufInvalid(f"{path.name} has unreadable metadata, or too much before its vocabulary") from exc
    return found


def _unpacked(value: Any, raw: bytes) -> Any:
    if not isinstance(value, Array) or value.length > _FEW or value.item_type not in _SCALARS:
        return value
    form = f"<{value.length}{_SCALARS[value.item_type]}"
    return struct.unpack(form, raw[len(raw) - struct.calcsize(form) :])


class Head:
    """A place in the head that moves on as values are taken; running over the end raises struct.error or IndexError.

    Without `whole`, a long array ends the reading: what comes after it may not be there.
    """

    def __init__(self, data: bytes, *, whole: bool = True) -> None:
        """Begin after the counts."""
        self._data = data
        self._whole = whole
        self.at = 24

    def pairs(self, count: int) -> Iterator[tuple[str, Any, bytes]]:
        """Yield key, value, and both as they stand in the file."""
        for _ in range(count):
            start = self.at
            key = self.text()
            value = self._value(self.number("I"))
            yield key, value, self._data[start : self.at]

    def number(self, form: str) -> Any:
        """Take one number of a struct format."""
        (value,) = struct.unpack_from(f"<{form}", self._data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        """Take one text."""
        end = self.at + 8 + self.number("Q")
        if end > len(self._data):
            raise IndexError
        text = self._data[self.at : end].decode("utf-8", "replace")
        self.at = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])
        item_type, length = self.number("I"), self.number("Q")
        if not self._whole and length > _FEW:
            return Array(item_type, length)
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
