"""A model split into several GGUF files made one again: Ollama's store has one file per model."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from worker.gguf_file import GgufFile, GgufInvalid, read

# What gguf-split notes in each part; without it the whole is what it was before the split.
_NOTES = ("split.no", "split.count", "split.tensors.count")
_BLOCK_BYTES = 8 << 20


def order(paths: Sequence[Path]) -> list[GgufFile]:
    """Return the heads of all parts in their own order.

    Raises:
        GgufInvalid: parts are missing, belong to different models, or are cut off.
    """
    parts = sorted((read(path) for path in paths), key=lambda part: int(part.metadata.get("split.no", 0)))
    numbers = [part.metadata.get("split.no") for part in parts]
    if numbers != list(range(len(parts))) or any(part.split_count != len(parts) for part in parts):
        said = ", ".join(f"{part.path.name}: {part.metadata.get('split.no')}/{part.split_count}" for part in parts)
        raise GgufInvalid(f"these are not all parts of one model: {said}")
    wanted = parts[0].metadata.get("split.tensors.count")
    found = sum(len(part.tensors) for part in parts)
    if wanted is not None and wanted != found:
        raise GgufInvalid(f"the parts of {parts[0].path.name} have {found} tensors, they should have {wanted}")
    for part in parts:
        part.require_whole()
    return parts


def merged_bytes(parts: Sequence[GgufFile]) -> int:
    """Return how long the merged file is at most, in bytes."""
    return sum(part.size_bytes for part in parts)


def merge(parts: Sequence[GgufFile], target: Path, advance: Callable[[int], None] = lambda _: None) -> None:
    """Write the parts, as `order` returns them, into the new file `target`; `advance` gets bytes as they are copied.

    Raises:
        OSError: reading or writing failed; `target` may be there and is not whole.
    """
    first = parts[0]
    pairs = [raw for key, raw in first.pairs.items() if key not in _NOTES]
    infos, copies, offset = [], [], 0
    for part in parts:
        ends = [*sorted(tensor.offset for tensor in part.tensors), part.size_bytes - part.data_start]
        for tensor in part.tensors:
            stored_bytes = tensor.size_bytes or ends[ends.index(tensor.offset) + 1] - tensor.offset
            infos.append(_info(tensor.name, tensor.shape, tensor.type, offset))
            copies.append((part.path, part.data_start + tensor.offset, offset, stored_bytes))
            offset += -(-stored_bytes // first.alignment) * first.alignment
    head = struct.pack("<4sIQQ", b"GGUF", first.version, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    data_start = -(-len(head) // first.alignment) * first.alignment
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, data_start + offset)
        _write(fd, memoryview(head), 0)
        for path, start, place, size_bytes in copies:
            _copy(path, start, fd, data_start + place, size_bytes, advance)
    finally:
        os.close(fd)


def _info(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    text = name.encode()
    return struct.pack(f"<Q{len(text)}sI{len(shape)}QIQ", len(text), text, len(shape), *shape, kind, offset)


def _copy(path: Path, start: int, fd: int, place: int, size_bytes: int, advance: Callable[[int], None]) -> None:
    with path.open("rb", buffering=0) as source:
        done = 0
        while done < size_bytes:
            block = os.pread(source.fileno(), min(_BLOCK_BYTES, size_bytes - done), start + done)
            if not block:
                raise GgufInvalid(f"{path.name} ends within a tensor")
            _write(fd, memoryview(block), place + done)
            done += len(block)
            advance(len(block))


def _write(fd: int, data: memoryview, place: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], place + written)
