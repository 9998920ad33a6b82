"""Which compiled kernels fit here: the key of the JIT cache, from the devices and the library the kernels come from."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import IO

from worker.device import Found, dotted
from worker.jit_cache import Key

_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_PROGRAM_TABLE = struct.Struct("<Q14xHH")  # at 0x20: where it is; at 0x36: bytes of an entry, how many
_PROGRAM = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")  # bytes of the owner's name, of the content, and what it is
_TYPE_NOTE, _BUILD_ID = 4, 3
_MOST_PROGRAMS, _MOST_NOTE_BYTES = 64, 64 << 10
_SAMPLE_BYTES = 64 << 10


class NoKey(Exception):
    """It cannot be said which kernels fit here; the text says what is not known."""


def jit_key(found: Found, library: Path) -> Key:
    """Return the key for the kernels that `library`, a backend's libggml-cuda.so, has compiled on the devices `found`.

    The driver compiles for every kind of device that is there, and its own cache tells entries apart by content: a key
    that says too little makes useless files, never wrong kernels. Reads a few KiB of the library.

    Raises:
        NoKey: no device, an unknown compute capability or driver, or the library cannot be read.
    """
    capabilities = sorted({device.capability for device in found.devices if device.capability})
    if not capabilities or any(device.capability is None for device in found.devices):
        raise NoKey("no device is visible" if not found.devices else "a device does not tell its compute capability")
    if found.driver is None:
        raise NoKey("the driver's version is not known")
    try:
        build = build_of(library)
    except OSError as exc:
        raise NoKey(f"{library.name}: {exc.strerror or exc}") from exc
    capability = "+".join(dotted(version) for version in capabilities)
    return Key(capability, found.driver.version, f"{library.parent.name}-{build}")


def build_of(library: Path) -> str:
    """Return what tells one build of a library from any other: its linker's build ID, else its size and a digest.

    Raises:
        OSError: it cannot be read.
    """
    with library.open("rb") as file:
        noted = _build_id(file)
        return noted or _sampled(file)


def _build_id(file: IO[bytes]) -> str:
    """Return the GNU build ID in hexadecimal, empty when the file has none that can be read."""
    if _at(file, 0, len(_ELF_64_LITTLE)) != _ELF_64_LITTLE:
        return ""
    try:
        offset, size, count = _PROGRAM_TABLE.unpack(_at(file, 0x20, _PROGRAM_TABLE.size))
        if size != _PROGRAM.size:
            return ""
        table = _at(file, offset, size * min(count, _MOST_PROGRAMS))
        for kind, _, at, _, _, length, _, align in _PROGRAM.iter_unpack(table):
            if kind == _TYPE_NOTE and length <= _MOST_NOTE_BYTES:
                noted = _in_notes(_at(file, at, length), max(4, align))
                if noted:
                    return noted
    except (struct.error, ValueError):
        # A damaged or foreign file: what its size and content say is enough.
        return ""
    return ""


def _in_notes(notes: bytes, align: int) -> str:
    at = 0
    while at < len(notes):
        name_bytes, content_bytes, kind = _NOTE.unpack_from(notes, at)
        name_at = at + _NOTE.size
        content_at = name_at + name_bytes + -name_bytes % 4
        if kind == _BUILD_ID and notes[name_at : name_at + name_bytes] == b"GNU\0":
            return notes[content_at : content_at + content_bytes].hex()
        at = content_at + content_bytes
        at += -at % align
    return ""


def _sampled(file: IO[bytes]) -> str:
    """Return size and digest of both ends: the whole of a library of gigabytes would take longer than the kernels."""
    size = os.fstat(file.fileno()).st_size
    ends = _at(file, 0, _SAMPLE_BYTES) + _at(file, max(0, size - _SAMPLE_BYTES), _SAMPLE_BYTES)
    return f"{size}-{hashlib.sha256(ends).hexdigest()[:24]}"


def _at(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
