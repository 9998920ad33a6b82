"""Writes small shared libraries that carry GPU code in the layout nvcc gives it, without nvcc."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAGS = {"": 0, "lz4": 0x2000, "zstd": 0x8000}
SUFFIX_FLAGS = {"": 0, "a": 1 << 20, "f": 1 << 21}


def elf(*sections: tuple[str, bytes, int]) -> bytes:
    """Return a 64-bit ELF file of `sections`: name, content, flags (4 is executable)."""
    names = b"\0"
    body = bytearray(64)
    headers = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, content, flags in (*sections, (".shstrtab", b"", 0)):
        name_at = len(names)
        names += name.encode() + b"\0"
        data = names if name == ".shstrtab" else content
        body += bytes(-len(body) % 8)
        headers.append(struct.pack("<IIQQQQIIQQ", name_at, 1, flags, 0, len(body), len(data), 0, 0, 8, 0))
        body += data
    body += bytes(-len(body) % 8)
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    counts = (64, 0, 0, 64, len(headers), len(headers) - 1)
    body[:64] = identity + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, len(body), 0, *counts)
    return bytes(body) + b"".join(headers)


def cubin(*, kernels: bool = True) -> bytes:
    """Return machine code as the compiler wraps it, or the kernel-less stub a device link makes."""
    return elf((".text._Z6kernelv", bytes(128), 6) if kernels else (".nv.callgraph", bytes(32), 0))


def sass(architecture: str, *, compression: str = "", kernels: bool = True) -> bytes:
    """Return an entry with machine code for `architecture`, as in "90a"."""
    if compression:
        return _entry(2, architecture, b"\x28\xb5\x2f\xfd" + bytes(60), compression, 9000 if kernels else 1568, (1, 8))
    return _entry(2, architecture, cubin(kernels=kernels), "", 0, (1, 8))


def ptx(architecture: str, *, version: tuple[int, int] = (8, 7), compression: str = "zstd", size: int = 4220) -> bytes:
    """Return an entry with PTX of a language `version` that unpacks to `size` bytes."""
    return _entry(1, architecture, bytes(96), compression, size, version)


def other(architecture: str) -> bytes:
    """Return an entry that is neither machine code nor PTX, as link-time optimisation leaves."""
    return _entry(8, architecture, bytes(16), "", 0, (1, 0))


def fatbin(*entries: bytes) -> bytes:
    """Return one module with `entries`."""
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def library(*modules: Sequence[bytes], extra: Sequence[tuple[str, bytes, int]] = ()) -> bytes:
    """Return a library with `modules`, each a list of entries, 8 bytes of padding after each."""
    content = b"".join(fatbin(*entries) + bytes(8) for entries in modules)
    code = [(".nv_fatbin", content, 2)] if modules else []
    return elf((".text", bytes(16), 6), *code, *extra)


def _entry(
    kind: int, architecture: str, payload: bytes, compression: str, unpacked: int, version: tuple[int, int]
) -> bytes:
    sm = architecture.rstrip("af")
    payload += bytes(-len(payload) % 8)
    header_bytes = 80 if compression else 64
    flags = 0x11 | FLAGS[compression] | SUFFIX_FLAGS[architecture.removeprefix(sm)]
    packed = len(payload) if compression else 0
    fields = (kind, 0x0101, header_bytes, len(payload), packed, 0, version[1], version[0], int(sm), 0, 0, flags, 0)
    return struct.pack("<HHIQIIHHIIIQQQ", *fields, unpacked).ljust(header_bytes, b"\0") + payload
