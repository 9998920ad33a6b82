"""What a place on disk is: its filesystem, its free room, and how much of a file is in the page cache already."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

# Filesystems whose bytes come over a network or through a daemon; everything else counts as local.
_DISTANT = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "glusterfs", "beegfs", "afs", "gpfs", "wekafs"}
)
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_SAMPLES = 64
_OCTAL_SPACE = "\\040"


@dataclass(frozen=True)
class Place:
    """The filesystem a path lies on; `free_bytes` is what an ordinary process may still write."""

    path: Path
    filesystem: str
    free_bytes: int

    @property
    def distant(self) -> bool:
        """Whether reading goes over a network or through a user-space daemon."""
        return self.filesystem in _DISTANT or self.filesystem.startswith("fuse")

    @property
    def in_memory(self) -> bool:
        """Whether files here are charged to the container's memory and cannot be reclaimed."""
        return self.filesystem in _IN_MEMORY


def place(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Place:
    """Describe where `path` lies; it need not exist yet. Raises OSError when no parent can be read."""
    existing = path
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
        point = left.split(" ")[4].replace(_OCTAL_SPACE, " ") if right else ""
        # Later lines hide earlier ones mounted at the same point.
        if point and path.is_relative_to(point) and len(point) >= best:
            best, found = len(point), right.split(" ")[0]
    return found


def cached_share(path: Path) -> float:
    """Return the share of a file's pages in the page cache, 0 to 1, from samples spread over it.

    Looking does not read: mincore reports residency of a mapping that is never touched. 0 when it cannot be told.
    """
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        return 1.0
    pages = -(-size_bytes // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        # Private and writable only because ctypes takes addresses of writable buffers; nothing is written.
        view = mmap.mmap(file.fileno(), size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    try:
        anchor = ctypes.c_char.from_buffer(view)
        start = ctypes.addressof(anchor)
        del anchor
        found = [_resident(libc, start + (pages * i // _SAMPLES) * mmap.PAGESIZE) for i in range(_SAMPLES)]
    finally:
        view.close()
    return sum(found) / _SAMPLES


def _resident(libc: ctypes.CDLL, address: int) -> bool:
    flag = ctypes.c_ubyte(0)
    failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), ctypes.byref(flag))
    return not failed and bool(flag.value & 1)


def memory_headroom_bytes(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how much more the container may use, page cache counted as free, or None without a limit."""
    for limit, usage, stat, reclaimable in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        try:
            limit_bytes = int((root / limit).read_text())
            used_bytes = int((root / usage).read_text())
            stats = dict(line.split() for line in (root / stat).read_text().splitlines())
        except (OSError, ValueError):  # "max" means no limit here
            continue
        if limit_bytes < 1 << 60:
            return max(0, limit_bytes - used_bytes + int(stats.get(reclaimable, 0)))
    return None
