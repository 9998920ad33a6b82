"""Memory kept at hand for what is measured, so that a virtual machine's host is not measured instead.

The host of a virtual machine takes back memory that was free for a second, and giving it anew is slower than most
storage: the same write of 2 GB takes 0.4 s or 5 s. So a process of its own holds as much as the measured one will need
and lets go of it step by step, as fast as free memory shrinks; whatever is measured gets pages that were free for
milliseconds. Where no host does that it changes nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.programs import beside

STEP_BYTES = 16 << 20
# Free beyond what was free at first: enough for what is taken until the next look.
AHEAD_BYTES = 64 << 20
LOOK_S = 0.002
READ_BYTES = 4 << 20


@contextmanager
def held(size_bytes: int, folder: Path) -> Iterator[None]:
    """Hold `size_bytes` of memory, which the commands run in the context take; `folder` is on disk and has the room."""
    with beside("bench.held_memory", str(size_bytes), str(folder)):
        yield


def main() -> int:
    """Hold the memory, say so, and let go of it as others take memory; then wait to be ended."""
    size_bytes, folder = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryFile(buffering=0, dir=folder) as file:
        _fill(file.fileno(), size_bytes)
        wanted_bytes = free_bytes() + AHEAD_BYTES
        print("held", flush=True)
        while size_bytes > 0:
            time.sleep(LOOK_S)
            if free_bytes() < wanted_bytes:
                size_bytes = max(0, size_bytes - STEP_BYTES)
                os.ftruncate(file.fileno(), size_bytes)
        sys.stdin.buffer.read()
    return 0


def _fill(fd: int, size_bytes: int) -> None:
    """Have the page cache hold a file of nothing: such pages are handed out again first, and never written to disk."""
    os.posix_fallocate(fd, 0, size_bytes)
    block = bytearray(READ_BYTES)
    for offset in range(0, size_bytes, READ_BYTES):
        os.preadv(fd, [block], offset)


def free_bytes() -> int:
    """Return how much memory nothing uses, not even the page cache."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, value = line.split(":")
        if name == "MemFree":
            return int(value.split()[0]) * 1024
    raise RuntimeError("/proc/meminfo has no MemFree")


if __name__ == "__main__":
    sys.exit(main())
