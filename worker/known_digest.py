"""The sha256 of a large file that somebody has computed before, so that it need not be computed again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

READ_BYTES = 4 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Damaged(ValueError):
    """Bytes do not have the digest they should have."""

    def __init__(self, what: str, found: str, wanted: str) -> None:
        """Name the file or address, the digest found and the one wanted, both in hex."""
        super().__init__(f"{what}: the bytes have sha256 {found[:12]}…, they should have {wanted[:12]}…")


def of(path: Path, memory: Path, advance: Callable[[int], None] = lambda _: None) -> str:
    """Return the sha256 of `path` in hex: as its name tells it, as it was remembered, or computed and remembered now.

    `memory` is the folder for what cannot be remembered beside the file. While computing, `advance` gets the number of
    bytes read since its last call, and may stop it by raising.

    Raises:
        OSError: the file cannot be read.
    """
    known = named(path) or remembered(path, memory)
    if known:
        return known
    before = path.stat()
    digest = computed(path, advance)
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
        remember(path, memory, digest)
    return digest


def named(path: Path) -> str:
    """Return the digest that is a file's real name in a Hugging Face cache or a store of Ollama's, or ""."""
    real = path.resolve()
    name = real.name.removeprefix("sha256-")
    return name if real.parent.name == "blobs" and _SHA256.fullmatch(name) else ""


def remembered(path: Path, memory: Path) -> str:
    """Return the digest remembered for `path` as it is now, by size and time of change, or ""."""
    stat = path.stat()
    for place in _places(path, memory):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(place.read_bytes())
            if (note["size_bytes"], note["mtime_ns"]) == (stat.st_size, stat.st_mtime_ns):
                return str(note["sha256"])
    return ""


def remember(path: Path, memory: Path, sha256: str) -> None:
    """Note the digest beside the file, or in `memory` where that is not allowed; no note is a slower start only."""
    stat = path.stat()
    note = json.dumps({"sha256": sha256, "size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns})
    for place in _places(path, memory):
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh = place.with_name(f"{place.name}.{os.getpid()}")
            fresh.write_text(note)
            fresh.replace(place)
            return


def computed(path: Path, advance: Callable[[int], None] = lambda _: None) -> str:
    """Read `path` and return its sha256 in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def _places(path: Path, memory: Path) -> tuple[Path, Path]:
    real = path.resolve()
    key = hashlib.sha256(str(real).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return real.with_name(f".{real.name}.sha256"), memory / f"{key}.json"
