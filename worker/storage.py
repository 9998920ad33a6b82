"""What a place on disk is: its filesystem, its free room, and how much of a file is in the page cache already."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from worker import cgroups

# Filesystems whose bytes come over a network or through a daemon; everything else counts as local.
_DISTANT = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "glusterfs", "beegfs", "afs", "gpfs", "wekafs"}
)
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_SAMPLES = 512
# MAP_NORESERVE, which Python has a name for since 3.13.
_NO_RESERVE = 0x4000
_OCTAL = re.compile(r"\\([0-7]{3})")
# What a file in the page cache of a container may be charged to, by the interface's version: limit, usage, statistics.
_NAMES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class Place:
    """The filesystem a path lies on; `free_bytes` is what an ordinary process may still write."""

    path: Path
    filesystem: str
    free_bytes: int

    @property
    def distant(self) -> bool:
        """Whether reading goes over a network or through a user-space daemon."""
        return self.filesystem in _DISTANT or self.filesystem.partition(".")[0] == "fuse"

    @property
    def in_memory(self) -> bool:
        """Whether files here are charged to the container's memory and cannot be reclaimed."""
        return self.filesystem in _IN_MEMORY


def place(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Place:
    """Describe where `path` lies; it need not exist yet. Raises OSError when no parent can be read."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    stats = os.statvfs(existing)
    return Place(path, _filesystem(existing.resolve(), mounts), stats.f_bavail * stats.f_frsize)


def _filesystem(path: Path, mounts: Path) -> str:
    """Return the type of the filesystem mounted closest above `path`, or "unknown"."""
    best, found = -1, "unknown"
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return found
    for line in lines:
        # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if not right or len(fields) < 5:  # noqa: PLR2004 - the mount point is the fifth
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        # Later lines hide earlier ones mounted at the same point.
        if len(point) >= best and path.is_relative_to(point):
            best, found = len(point), right.split(" ")[0]
    return found


class PageCache:
    """Tells which parts of a file are in the page cache. Looking does not read: the mapping is never touched.

    Made for a file open as `fd`, of `size_bytes` above 0; safe to ask from several threads.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        """Map the file; raise OSError or ValueError where that is impossible."""
        # The kernel calls every page of a file resident that is not the caller's own or writable to it.
        self._honest = os.geteuid() in {0, os.fstat(fd).st_uid}
        # Private and writable only because ctypes takes addresses of writable buffers; nothing is written, so a file
        # larger than memory needs no room there.
        flags = mmap.MAP_PRIVATE | _NO_RESERVE
        self._view = mmap.mmap(fd, size_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._mincore = ctypes.CDLL(None).mincore
        anchor = ctypes.c_char.from_buffer(self._view)
        self._start = ctypes.addressof(anchor)

    def close(self) -> None:
        """Unmap the file."""
        self._view.close()

    def share(self, start: int, end: int) -> float:
        """Return the share of the pages of [start, end) that are cached, 0 to 1; `start` is aligned to pages.

        0 when it cannot be told.
        """
        pages = -(-(end - start) // mmap.PAGESIZE)
        flags = (ctypes.c_ubyte * pages)()
        address = ctypes.c_void_p(self._start + start)
        if not self._honest or pages == 0 or self._mincore(address, ctypes.c_size_t(end - start), flags):
            return 0.0
        return bytes(flags).count(1) / pages


def cached_share(path: Path) -> float:
    """Return the share of a file's pages in the page cache, 0 to 1, from samples spread over it.

    An empty file is cached. 0 when it cannot be told. Raises OSError when the file cannot be opened.
    """
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes == 0:
            return 1.0
        pages = -(-size_bytes // mmap.PAGESIZE)
        starts = sorted({pages * i // _SAMPLES * mmap.PAGESIZE for i in range(_SAMPLES)})
        try:
            with contextlib.closing(PageCache(file.fileno(), size_bytes)) as cache:
                return sum(cache.share(start, start + 1) for start in starts) / len(starts)
        except (OSError, ValueError):  # not every filesystem can map its files
            return 0.0


def memory_headroom_bytes(
    root: Path = cgroups.ROOT, own: Path = cgroups.OWN, machine: Path = Path("/proc/meminfo")
) -> int | None:
    """Return how much more this process may use, page cache not in use counted as free; None when nothing tells.

    The least of what the machine has and what each memory group around the process allows.
    """
    found = [_available_bytes(machine)]
    for folder, version in cgroups.around("memory", root, own):
        found.append(_group_headroom_bytes(folder, _NAMES[version]))
    return min((value for value in found if value is not None), default=None)


def _group_headroom_bytes(folder: Path, names: tuple[str, str, str]) -> int | None:
    limit, usage, reclaimable = names
    try:
        limit_bytes = int((folder / limit).read_text())
        used_bytes = int((folder / usage).read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # "max" means no limit here
        return None
    if limit_bytes >= _UNLIMITED_BYTES:
        return None
    return max(0, limit_bytes - used_bytes + int(stats.get(reclaimable, 0)))


def _available_bytes(machine: Path) -> int | None:
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB$", machine.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
