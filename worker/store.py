"""A store of Ollama's that may be written to: a blob is whole and verified or absent, and so is a model."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from worker import manifest, storage
from worker.digest import TrailingDigest
from worker.known_digest import Damaged
from worker.manifest import Layer, Manifest
from worker.opened import direct_latency_s
from worker.pace import first_method
from worker.progress import Meter
from worker.readers import BlockCopy

# ioctl number of FICLONE, from linux/fs.h: share another file's extents instead of copying them.
_FICLONE = 0x40049409


class NoRoom(OSError):
    """The disk has less free than is needed; the message names both."""


@dataclass(frozen=True)
class Store:
    """The store at `root`, which need not exist yet.

    `symlinks` allows blobs that are links to files on other disks: a model of hundreds of gigabytes is then served from
    where it lies. Where the file is not there, on another machine or later, the blob counts as absent.
    """

    root: Path
    symlinks: bool = False

    @property
    def partials(self) -> Path:
        """Where files lie until they are whole; on the store's own filesystem, so that they only need a new name."""
        return self.root / "partial"

    @property
    def leases(self) -> Path:
        """Where rights to write are noted."""
        return self.root / "leases"

    @property
    def digests(self) -> Path:
        """Where digests are remembered that cannot be remembered beside their files."""
        return self.root / "digests"

    def blob(self, sha256: str) -> Path:
        """Return where the blob of a hex digest lies, whether or not it does."""
        return self.root / "blobs" / f"sha256-{sha256}"

    def has(self, sha256: str, size_bytes: int | None = None) -> bool:
        """Return whether the blob is there, with that size if one is given."""
        try:
            found_bytes = self.blob(sha256).stat().st_size
        except OSError:
            return False
        return size_bytes is None or found_bytes == size_bytes

    def require_room(self, needed_bytes: int) -> None:
        """Raise NoRoom unless `needed_bytes` more can be written here."""
        free_bytes = storage.place(self.root).free_bytes
        if free_bytes < needed_bytes:
            text = f"{self.root} has {free_bytes / 1e9:.2f} GB free, {needed_bytes / 1e9:.2f} GB are needed"
            raise NoRoom(errno.ENOSPC, text)

    def put(self, data: bytes, media_type: str) -> Layer:
        """Write a small blob and return its layer."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.has(sha256, len(data)):
            self._write(self.blob(sha256), data)
        return Layer(media_type, f"sha256:{sha256}", len(data))

    def adopt(self, path: Path, sha256: str, *, media_type: str, meter: Meter | None = None) -> Layer:
        """Make the file at `path`, whose digest is `sha256`, a blob without rewriting it where that can be avoided.

        A hard link, else shared extents, else a symbolic link where they are allowed, else a copy verified on the way.

        Raises:
            NoRoom: it has to be copied and does not fit.
            Damaged: the copy has another digest.
            Halted: the meter said so.
            OSError: reading or writing failed.
        """
        real = path.resolve(strict=True)
        size_bytes = real.stat().st_size
        blob = self.blob(sha256)
        if not self.has(sha256, size_bytes) and not self._linked(real, blob):
            self.require_room(size_bytes)
            self._copied(real, blob, sha256, meter or Meter(size_bytes))
        return Layer(media_type, f"sha256:{sha256}", size_bytes)

    def install(self, whole: Path, sha256: str, *, media_type: str) -> Layer:
        """Give a whole and verified file of `partials` its final name."""
        blob = self.blob(sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        # Another worker may have finished the same content, wanted under another name.
        with contextlib.suppress(FileNotFoundError):
            whole.replace(blob)
        return Layer(media_type, f"sha256:{sha256}", blob.stat().st_size)

    def publish(self, model: Manifest) -> Manifest:
        """Make a model visible; return it under the name it has now, spelled as the store spells its other names.

        Raises:
            ValueError: a blob it names is not there.
        """
        if lacking := model.lacks(self.root):
            raise ValueError(f"{model.name.short}: {'; '.join(lacking)}")
        named = replace(model, name=manifest.in_the_spelling_of(self.root, model.name))
        self._write(manifest.path_of(self.root, named.name), named.body())
        return named

    def remove(self, model: Manifest) -> int:
        """Remove a model and the blobs no other model uses; return how many bytes that freed."""
        path = manifest.path_of(self.root, model.name)
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[:3]:
            # Only empty folders go.
            with contextlib.suppress(OSError):
                folder.rmdir()
        kept = {layer.digest for other in manifest.every(self.root) for layer in other.layers}
        freed_bytes = 0
        for layer in {layer.digest: layer for layer in model.layers if layer.digest not in kept}.values():
            with contextlib.suppress(FileNotFoundError):
                freed_bytes += layer.path(self.root).stat().st_size
                layer.path(self.root).unlink()
        return freed_bytes

    def mark_used(self, model: Manifest) -> None:
        """Note that the model is used now, as its largest blob's time of access; a read-only store notes nothing."""
        path = _largest(model).path(self.root)
        with contextlib.suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))

    def last_used_s(self, model: Manifest) -> float:
        """Return when the model was used last or came, in seconds since 1970; 0 when it is not whole."""
        try:
            stamp_s = manifest.path_of(self.root, model.name).stat().st_mtime
            return max(stamp_s, _largest(model).path(self.root).stat().st_atime)
        except OSError:
            return 0.0

    def _linked(self, real: Path, blob: Path) -> bool:
        blob.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._fresh(blob.name)
        ways: list[Callable[[Path, Path], None]] = [os.link, _clone]
        if self.symlinks:
            ways.append(os.symlink)
        try:
            for way in ways:
                with contextlib.suppress(OSError):
                    way(real, fresh)
                    fresh.replace(blob)
                    return True
                fresh.unlink(missing_ok=True)
        finally:
            # Renaming one hard link onto another of the same file leaves both.
            fresh.unlink(missing_ok=True)
        return False

    def _copied(self, real: Path, blob: Path, sha256: str, meter: Meter) -> None:
        fresh = self._fresh(blob.name)
        try:
            _copy(real, fresh, sha256, meter)
            fresh.replace(blob)
        finally:
            fresh.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._fresh(path.name)
        try:
            fresh.write_bytes(data)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)

    def _fresh(self, name: str) -> Path:
        self.partials.mkdir(parents=True, exist_ok=True)
        return self.partials / f"{name}.{uuid.uuid4().hex}"


def _largest(model: Manifest) -> Layer:
    return max(model.layers, key=lambda layer: layer.size_bytes)


def _clone(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        fcntl.ioctl(written.fileno(), _FICLONE, read.fileno())


def _copy(source: Path, target: Path, sha256: str, meter: Meter) -> None:
    """Copy `source` to the new file `target` and verify it; raise Damaged, Halted or OSError."""
    size_bytes = source.stat().st_size
    with contextlib.ExitStack() as stack:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        stack.callback(os.close, fd)
        trailing = TrailingDigest(fd, size_bytes)
        stack.callback(trailing.abandon)
        os.ftruncate(fd, size_bytes)
        copy = BlockCopy(source, fd, size_bytes, trailing.wrote, growing=True)
        copy.run(first_method(direct_latency_s(source)), lambda: meter.reach(copy.tally.moved_bytes))
        found = trailing.result(lambda: meter.advance(0))
    if found != sha256:
        raise Damaged(str(source), found, sha256)
