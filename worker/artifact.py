"""A directory as one thing: its inventory, one packed file, and an installation that is whole or absent."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

INVENTORY = "inventory.json"
BLOCK_BYTES = 1 << 20
INVENTORY_LIMIT_BYTES = 64 << 20


class Corrupt(ValueError):
    """The packed file is not what its inventory says; nothing of it was installed."""


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
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise Corrupt(f"the inventory cannot be read ({type(exc).__name__})") from exc
        for entry in entries:
            _require_inside(entry.path)
        if len({entry.path for entry in entries}) != len(entries):
            raise Corrupt("the inventory names a path twice")
        return cls(entries, about)


def take(directory: Path, about: dict[str, str] | None = None) -> Inventory:
    """Return the inventory of the regular files below `directory`; links and special files are left out."""
    entries = []
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_symlink():
            digest, size_bytes = _digest(path)
            entries.append(Entry(path.relative_to(directory).as_posix(), size_bytes, digest))
    return Inventory(tuple(sorted(entries)), about or {})


def pack(directory: Path, target: Path, about: dict[str, str] | None = None) -> Inventory:
    """Write `directory` as one file to `target`, which appears whole or not at all; return what it holds.

    Raises:
        OSError: no room, no permission; `target` is as it was.
        Corrupt: a file changed while it was packed.
    """
    inventory = take(directory, about)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with tarfile.open(partial, "w") as archive:
            _add(archive, INVENTORY, BytesIO(inventory.canonical()), len(inventory.canonical()))
            for entry in inventory.entries:
                with (directory / entry.path).open("rb") as file:
                    hashing = _Hashing(file)
                    _add(archive, entry.path, hashing, entry.size_bytes)
                if hashing.hexdigest() != entry.sha256:
                    raise Corrupt(f"{entry.path} changed while it was packed")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return inventory


def inspect(source: Path) -> Inventory:
    """Return the inventory of a packed file without unpacking it; raise Corrupt or OSError."""
    with _opened(source) as archive:
        return _inventory(archive)


def install(source: Path, directory: Path) -> Inventory:
    """Unpack `source` as `directory`, which is replaced as a whole once every file has the digest it should have.

    Raises:
        Corrupt: the content is not what the inventory says, or would leave the directory.
        OSError: no room, no permission. In both cases `directory` is as it was.
    """
    staging = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.partial")
    try:
        with _opened(source) as archive:
            inventory = _inventory(archive)
            _unpack(archive, inventory, staging)
        _swap(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return inventory


def _unpack(archive: tarfile.TarFile, inventory: Inventory, staging: Path) -> None:
    wanted = {entry.path: entry for entry in inventory.entries}
    staging.mkdir(parents=True)
    while (member := archive.next()) is not None:
        entry = wanted.pop(member.name, None)
        if entry is None or not member.isreg() or member.size != entry.size_bytes:
            raise Corrupt(f"{member.name!r:.120} is not in the inventory as it is in the file")
        target = staging / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        if content is None or _copy(content, target) != entry.sha256:
            raise Corrupt(f"{entry.path} has other bytes than the inventory says")
    if wanted:
        raise Corrupt(f"{min(wanted)} is missing")


def _swap(staging: Path, directory: Path) -> None:
    aside = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.old")
    try:
        directory.rename(aside)
    except FileNotFoundError:
        aside = None  # type: ignore[assignment] # nothing was there
    try:
        staging.rename(directory)
    except OSError:
        if aside is not None:
            aside.rename(directory)
        raise
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _opened(source: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(source, "r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError) as exc:
        raise Corrupt(f"{source.name} is not a packed directory ({exc})") from exc


def _inventory(archive: tarfile.TarFile) -> Inventory:
    member = archive.next()
    if member is None or member.name != INVENTORY or not member.isreg() or member.size > INVENTORY_LIMIT_BYTES:
        raise Corrupt("the file does not begin with an inventory")
    content = archive.extractfile(member)
    return Inventory.parse(content.read() if content is not None else b"")


def _require_inside(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path or path == INVENTORY:
        raise Corrupt(f"the inventory names {path!r:.120}, which is outside the directory")


def _add(archive: tarfile.TarFile, name: str, content: Any, size_bytes: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size_bytes
    member.mode = 0o644
    try:
        archive.addfile(member, content)
    except OSError as exc:
        # tarfile reports a source that ended early as an OSError without a number.
        if exc.errno is None:
            raise Corrupt(f"{name} changed while it was packed") from exc
        raise


class _Hashing:
    """A readable file that keeps the digest of what was read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._digest.update(block)
        return block

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _copy(content: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as file:
        while block := content.read(BLOCK_BYTES):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _digest(path: Path) -> tuple[str, int]:
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            size_bytes += len(block)
    return digest.hexdigest(), size_bytes
