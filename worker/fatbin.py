"""What code for which GPU architecture a CUDA library carries, read from its ELF sections without a GPU or a tool."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Buffer = bytes | mmap.mmap
Kind = Literal["sass", "ptx", "other"]

FATBIN_SECTION = b".nv_fatbin"  # __nv_relfatbin beside it is input for a device linker, never run

_FATBIN_MAGIC = 0xBA55ED50
_FATBIN_HEADER = struct.Struct("<IHHQ")  # magic, version, header size, bytes of all entries
_ENTRY_HEADER = struct.Struct("<HHIQIIHHIIIQQQ")  # 64 bytes; newer compilers append more, so its size field counts
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SASS = 2
_KINDS: dict[int, Kind] = {1: "ptx", _SASS: "sass"}
_LZ4, _ZSTD = 0x2000, 0x8000
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 1 << 20, 1 << 21
_SECTION_IS_EMPTY, _SECTION_IS_CODE = 8, 4  # type NOBITS, flag EXECINSTR
_NAMES_INDEX_IN_SECTION_0 = 0xFFFF
_ARCHITECTURES = range(10, 1000)  # 1.0 was the first one
# A device-link stub has no kernel in it. Compressed, only its size shows: stubs of CUDA 12.8 to 13.5 unpack to
# 872-1680 bytes, the smallest module with a kernel to 2856.
_STUB_BYTES = 2048


class FatbinInvalid(ValueError):
    """The file is no ELF library, or its GPU code is damaged; says which file, where, and what is wrong."""

    def __init__(self, name: str, offset: int, problem: str) -> None:
        """Name the file, the byte `offset` in it, and the `problem` there."""
        super().__init__(f"{name}: {problem} at offset {offset:#x}")
        self.name = name
        self.offset = offset
        self.problem = problem


@dataclass(frozen=True, order=True)
class Architecture:
    """A GPU architecture code was compiled for; `suffix` "a" ties it to exactly this one, "f" to its family."""

    major: int
    minor: int
    suffix: str = ""

    def __str__(self) -> str:
        """Return it the way the compiler's options spell it, as in `90a`."""
        return f"{self.major}{self.minor}{self.suffix}"


@dataclass(frozen=True)
class Entry:
    """One piece of code. `version` is the PTX language version (major, minor) for PTX; sizes are in bytes."""

    kind: Kind
    architecture: Architecture
    version: tuple[int, int]
    compression: str
    stored_bytes: int
    unpacked_bytes: int
    empty: bool


@dataclass(frozen=True)
class Fatbin:
    """One compiled module: the same kernels for several architectures, one of which the driver picks."""

    offset: int
    entries: tuple[Entry, ...]

    @property
    def empty(self) -> bool:
        """Whether there is no kernel in it, as in the stub that nvcc's device link leaves behind."""
        return all(entry.empty for entry in self.entries)


def read(path: Path) -> tuple[Fatbin, ...]:
    """Return the modules of the library at `path`, in file order; empty when it has no GPU code.

    Raises:
        FatbinInvalid: the file is not a 64-bit little-endian ELF file, or is damaged.
        OSError: the file cannot be opened.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise FatbinInvalid(str(path), 0, "empty file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # Only headers are looked at; readahead around each would fetch the whole library from a slow disk.
            data.madvise(mmap.MADV_RANDOM)
            return parse(data, str(path))


def parse(data: Buffer, name: str) -> tuple[Fatbin, ...]:
    """Return the modules in the ELF image `data`; `name` is what errors call it.

    Raises:
        FatbinInvalid: the image is not a 64-bit little-endian ELF file, or is damaged.
    """
    image = _Image(data, name)
    return tuple(
        fatbin
        for section in _sections(image, 0, len(data))
        if section.name == FATBIN_SECTION and section.kind != _SECTION_IS_EMPTY
        for fatbin in _fatbins(image, section)
    )


@dataclass(frozen=True)
class _Image:
    """Bytes that are only ever read inside their bounds."""

    data: Buffer
    name: str

    def unpack(self, layout: struct.Struct, offset: int, end: int) -> tuple[int, ...]:
        if offset + layout.size > end:
            raise self.wrong(offset, f"{layout.size} bytes expected, the data ends at {end:#x}")
        return layout.unpack_from(self.data, offset)

    def wrong(self, offset: int, problem: str) -> FatbinInvalid:
        return FatbinInvalid(self.name, offset, problem)


@dataclass(frozen=True)
class _Section:
    name: bytes
    kind: int
    flags: int
    offset: int
    size: int


def _sections(image: _Image, start: int, end: int) -> Iterator[_Section]:
    """Yield the sections of the ELF file that lies in [start, end) of the image."""
    if image.data[start : min(start + 6, end)] != b"\x7fELF\x02\x01":
        raise image.wrong(start, "not a 64-bit little-endian ELF file")
    (table,) = image.unpack(struct.Struct("<Q"), start + 0x28, end)
    step, count, names = image.unpack(struct.Struct("<HHH"), start + 0x3A, end)
    if not table:
        return
    if step < _SECTION_HEADER.size:
        raise image.wrong(start + 0x3A, f"section headers of {step} bytes")
    table += start
    first = image.unpack(_SECTION_HEADER, table, end)
    count = count or first[5]  # numbers too large for the ELF header are kept in section 0
    names = first[6] if names == _NAMES_INDEX_IN_SECTION_0 else names
    strings = image.unpack(_SECTION_HEADER, table + names * step, end)[4] + start
    for index in range(count):
        header = image.unpack(_SECTION_HEADER, table + index * step, end)
        _name, kind, flags, _address, offset, size = header[:6]
        if kind != _SECTION_IS_EMPTY and start + offset + size > end:
            raise image.wrong(table + index * step, "a section reaches past the end of the file")
        at = strings + header[0]
        yield _Section(image.data[at : at + 64].split(b"\0", 1)[0], kind, flags, start + offset, size)


def _fatbins(image: _Image, section: _Section) -> Iterator[Fatbin]:
    """Yield the modules in a section: each starts at a multiple of 8 bytes, with zeros before it."""
    at, end = section.offset, section.offset + section.size
    while at < end:
        padding = (section.offset - at) % 8
        if not padding and not any(image.data[at : min(at + 8, end)]):
            padding = 8
        if padding:
            if any(image.data[at : min(at + padding, end)]):
                raise image.wrong(at, "neither GPU code nor padding")
            at += padding
            continue
        magic, _version, header_bytes, size = image.unpack(_FATBIN_HEADER, at, end)
        if magic != _FATBIN_MAGIC or header_bytes < _FATBIN_HEADER.size:
            raise image.wrong(at, "neither GPU code nor padding")
        entries_at, entries_end = at + header_bytes, at + header_bytes + size
        if entries_end > end:
            raise image.wrong(at, f"module of {size} bytes reaches past its section")
        yield Fatbin(at, tuple(_entries(image, entries_at, entries_end)))
        at = entries_end


def _entries(image: _Image, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        fields = image.unpack(_ENTRY_HEADER, at, end)
        kind, _, header_bytes, stored, _packed, _, minor, major, sm, _, _, flags, _, unpacked = fields
        payload = at + header_bytes
        if header_bytes < _ENTRY_HEADER.size or payload + stored > end:
            raise image.wrong(at, f"entry of {header_bytes} + {stored} bytes does not fit its module")
        if sm not in _ARCHITECTURES:
            raise image.wrong(at, f"no such architecture: {sm}")
        compression = "zstd" if flags & _ZSTD else "lz4" if flags & _LZ4 else ""
        suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
        unpacked = unpacked if compression else stored
        if kind == _SASS and not compression:
            empty = not any(part.flags & _SECTION_IS_CODE for part in _sections(image, payload, payload + stored))
        else:
            empty = kind == _SASS and unpacked < _STUB_BYTES
        code = Architecture(*divmod(sm, 10), suffix)
        yield Entry(_KINDS.get(kind, "other"), code, (major, minor), compression, stored, unpacked, empty)
        at = payload + stored
