"""What a directory holds: every file's path, size and digest, and the one way to write that down."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO

_BLOCK_BYTES = 1 << 20


class Corrupt(ValueError):
    """A packed directory is not what its inventory says; nothing of it was installed."""


@dataclass(frozen=True, order=True)
class Entry:
    """One file: its path relative to the directory with `/`, its size in bytes, its sha256 in hex."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Inventory:
    """What a directory holds, sorted by path; `about` is free text that travels with it."""

    entries: tuple[Entry, ...]
    about: dict[str, str]

    @property
    def identity(self) -> str:
        """The sha256 of the inventory itself: equal content has equal identity, wherever it lies."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """The files' sizes together."""
        return sum(entry.size_bytes for entry in self.entries)

    def canonical(self) -> bytes:
        """Return the one way to write this inventory as JSON."""
        value = {"about": self.about, "entries": [asdict(entry) for entry in self.entries]}
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> Inventory:
        """Read a canonical inventory; raise Corrupt when it is not one or names a path outside its directory."""
        try:
            value = json.loads(data)
            entries = tuple(Entry(str(e["path"]), int(e["size_bytes"]), str(e["sha256"])) for e in value["entries"])
            about = {str(name): str(text) for name, text in value["about"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise Corrupt(f"the inventory cannot be read ({type(exc).__name__})") from exc
        paths = {entry.path for entry in entries}
        if len(paths) != len(entries):
            raise Corrupt("the inventory names a path twice")
        for entry in entries:
            _require_inside(entry.path, paths)
            if entry.size_bytes < 0:
                raise Corrupt(f"the inventory gives {entry.path!r:.120} a size below 0")
        return cls(entries, about)


class Hashing:
    """A readable file that keeps the digest of what was read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        """Read from `file`, which stays the caller's to close."""
        self._file = file
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, as the file gives them."""
        block = self._file.read(size)
        self._digest.update(block)
        return block

    def hexdigest(self) -> str:
        """Return the sha256 of everything read so far."""
        return self._digest.hexdigest()


def take(directory: Path, about: dict[str, str] | None = None) -> Inventory:
    """Return the inventory of the regular files below `directory`; links and special files are left out.

    Raises OSError when a file cannot be read or goes away meanwhile.
    """
    entries = []
    for folder, _, names in os.walk(directory, followlinks=False):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                entries.append(_entry(path, path.relative_to(directory).as_posix()))
    return Inventory(tuple(sorted(entries)), about or {})


def _entry(path: Path, name: str) -> Entry:
    size_bytes = 0
    with path.open("rb") as file:
        hashing = Hashing(file)
        while block := hashing.read(_BLOCK_BYTES):
            size_bytes += len(block)
    return Entry(name, size_bytes, hashing.hexdigest())


def _require_inside(path: str, paths: set[str]) -> None:
    """Raise Corrupt unless `path` can only be one file below the directory, on every filesystem."""
    pure = PurePosixPath(path)
    try:
        os.fsencode(path)
        plain = str(pure) == path and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path
    except UnicodeEncodeError:
        plain = False
    if not plain or path == ".":
        raise Corrupt(f"the inventory names {path!a:.120}, which is outside the directory")
    if any(str(parent) in paths for parent in pure.parents):
        raise Corrupt(f"the inventory has {path!a:.120} below another file")
