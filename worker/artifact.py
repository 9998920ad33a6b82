"""A directory as one thing: its inventory, one packed file, and an installation that is whole or absent."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from worker.inventory import Corrupt, Hashing, Inventory, take

INVENTORY_LIMIT_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_HEAD = "inventory.json"


def _nothing() -> None:
    """Confirm without a question."""


def pack(
    directory: Path, target: Path, about: dict[str, str] | None = None, confirm: Callable[[], None] = _nothing
) -> Inventory:
    """Write `directory` as one file to `target`, which appears whole or not at all; return what it holds.

    `confirm` is called when the file is complete and before it gets its name; what it raises leaves `target` alone.

    Raises:
        OSError: no room, no permission; `target` is as it was.
        Corrupt: a file changed while it was packed.
    """
    inventory = take(directory, about)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(target, "partial")
    try:
        with partial.open("xb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                _add(archive, _HEAD, BytesIO(inventory.canonical()), len(inventory.canonical()))
                for entry in inventory.entries:
                    with (directory / entry.path).open("rb") as content:
                        hashing = Hashing(content)
                        _add(archive, entry.path, hashing, entry.size_bytes)
                    if hashing.hexdigest() != entry.sha256:
                        raise Corrupt(f"{entry.path} changed while it was packed")
            # A network filesystem may say only now that it is full, and must not learn the name before the bytes.
            file.flush()
            os.fsync(file.fileno())
        confirm()
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return inventory


def inspect(source: Path) -> Inventory:
    """Return the inventory of a packed file without unpacking it; raise Corrupt or OSError."""
    with _opened(source) as archive:
        return _inventory(archive)


def install(source: Path, directory: Path, confirm: Callable[[], None] = _nothing) -> Inventory:
    """Unpack `source` as `directory`, which is replaced as a whole once every file has the digest it should have.

    `confirm` is called when everything is verified and before `directory` changes.

    Raises:
        Corrupt: the content is not what the inventory says, or would leave the directory.
        OSError: no room, no permission. In both cases `directory` is as it was.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = _beside(directory, "partial")
    try:
        with _opened(source) as archive:
            inventory = _inventory(archive)
            if inventory.size_bytes > source.stat().st_size:
                raise Corrupt(f"the inventory promises {inventory.size_bytes:,} bytes, more than the file has")
            _unpack(archive, inventory, staging)
        confirm()
        _swap(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return inventory


def sweep(target: Path) -> None:
    """Remove what killed processes left beside `target`; only for who has the sole right to write it."""
    for kind in ("partial", "old"):
        for left in target.parent.glob(f".{target.name}.*.{kind}"):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.{kind}")


def _unpack(archive: tarfile.TarFile, inventory: Inventory, staging: Path) -> None:
    wanted = {entry.path: entry for entry in inventory.entries}
    staging.mkdir()
    while (member := archive.next()) is not None:
        entry = wanted.pop(member.name, None)
        # Links, devices and sparse files are other types: only plain bytes are taken.
        if entry is None or member.type != tarfile.REGTYPE or member.size != entry.size_bytes:
            raise Corrupt(f"{member.name!r:.120} is not in the inventory as it is in the file")
        target = staging / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        if content is None or _copy(content, target) != entry.sha256:
            raise Corrupt(f"{entry.path} has other bytes than the inventory says")
    if wanted:
        raise Corrupt(f"{min(wanted)} is missing")


def _swap(staging: Path, directory: Path) -> None:
    aside = _beside(directory, "old")
    try:
        directory.rename(aside)
    except FileNotFoundError:
        staging.rename(directory)
        return
    try:
        staging.rename(directory)
    except OSError:
        aside.rename(directory)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _opened(source: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(source, "r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError, UnicodeError) as exc:
        raise Corrupt(f"{source.name} is not a packed directory ({exc})") from exc


def _inventory(archive: tarfile.TarFile) -> Inventory:
    member = archive.next()
    if member is None or member.name != _HEAD or member.type != tarfile.REGTYPE or member.size > INVENTORY_LIMIT_BYTES:
        raise Corrupt("the file does not begin with an inventory")
    content = archive.extractfile(member)
    return Inventory.parse(content.read() if content is not None else b"")


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


def _copy(content: IO[bytes], target: Path) -> str:
    hashing = Hashing(content)
    try:
        with target.open("xb") as file:
            while block := hashing.read(_BLOCK_BYTES):
                file.write(block)
    except OSError as exc:
        if exc.errno in {errno.ENAMETOOLONG, errno.EILSEQ}:
            raise Corrupt(f"{target.name:.60}… cannot be a file's name here") from exc
        raise
    return hashing.hexdigest()
