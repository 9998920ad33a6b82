"""What is read off a machine about its filesystems, its page cache and its memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.storage import PageCache, Place, cached_share, memory_headroom_bytes, place

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.mark.parametrize(
    ("mounted", "below", "filesystem"),
    [
        ("/m", "/m/deep/er", "fuse"),
        ("/m", "/much", "overlay"),  # begins alike, lies elsewhere
        ("/m\\040space", "/m space/x", "fuse"),
        ("/m\\011and\\134backslash", "/m\tand\\backslash", "fuse"),
    ],
)
def test_the_closest_mount_decides(mounted: str, below: str, filesystem: str, tmp_path: Path) -> None:
    # Below tmp_path, for place() looks at what is really there.
    base = str(tmp_path.resolve())
    path = Path(base + below)
    path.mkdir(parents=True)
    table = tmp_path / "mountinfo"
    table.write_text(
        f"1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 / {base}{mounted} rw shared:1 - fuse mfs#host:9421 rw\n"
    )
    assert place(path, table).filesystem == filesystem


def test_of_two_mounts_on_one_point_the_later_counts(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {base} rw - nfs4 a rw\nno mount at all\n2 0 0:2 / {base} rw - tmpfs t rw\n")
    found = place(tmp_path, table)
    assert (found.filesystem, found.in_memory, found.distant) == ("tmpfs", True, False)


def test_a_symbolic_link_leads_to_where_it_points(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    (base / "volume").mkdir()
    (base / "link").symlink_to(base / "volume")
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / / rw - ext4 a rw\n2 0 0:2 / {base}/volume rw - fuse t rw\n")
    assert place(base / "link" / "file", table).filesystem == "fuse"


def test_without_a_mount_table_nothing_is_claimed(tmp_path: Path) -> None:
    found = place(tmp_path, tmp_path / "absent")
    assert (found.filesystem, found.distant, found.in_memory) == ("unknown", False, False)


def test_the_free_room_is_that_of_the_filesystem(tmp_path: Path) -> None:
    stats = os.statvfs(tmp_path)
    assert place(tmp_path / "a" / "b").free_bytes == pytest.approx(stats.f_bavail * stats.f_frsize, rel=0.2)


def test_a_relative_path_has_a_place_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place(Path("not/there")).filesystem == place(tmp_path).filesystem


@pytest.mark.parametrize(
    ("filesystem", "distant", "in_memory"),
    [
        ("fuse", True, False),
        ("fuse.sshfs", True, False),
        ("fuseblk", False, False),
        ("nfs", True, False),
        ("tmpfs", False, True),
        ("ramfs", False, True),
        ("ext4", False, False),
    ],
)
def test_a_filesystem_says_whether_it_is_distant_or_memory(filesystem: str, distant: bool, in_memory: bool) -> None:  # noqa: FBT001 - a row of the table
    found = Place(Path("/x"), filesystem, 0)
    assert (found.distant, found.in_memory) == (distant, in_memory)


def make_cold(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(path: Path, start: int, end: int) -> None:
    with path.open("rb", buffering=0) as file:
        # Without read-ahead, which would bring more than was read.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for offset in range(start, end, MIB):
            os.pread(file.fileno(), min(MIB, end - offset), offset)


@pytest.fixture
def cold_file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(16 * MIB + 100))
    make_cold(path)
    if cached_share(path) > 0.1:
        pytest.skip("this filesystem does not let go of its pages")
    return path


def test_the_share_in_the_page_cache_follows_what_was_read(cold_file: Path) -> None:
    warm(cold_file, 0, 8 * MIB)
    assert cached_share(cold_file) == pytest.approx(0.5, abs=0.1)
    warm(cold_file, 8 * MIB, 16 * MIB + 100)
    assert cached_share(cold_file) > 0.9


def test_looking_brings_nothing_in(cold_file: Path) -> None:
    assert [cached_share(cold_file) < 0.1 for _ in range(3)] == [True] * 3


def test_a_part_can_be_asked_for(cold_file: Path) -> None:
    warm(cold_file, 4 * MIB, 8 * MIB)
    size = cold_file.stat().st_size
    with cold_file.open("rb") as file, contextlib.closing(PageCache(file.fileno(), size)) as cache:
        assert cache.share(0, 4 * MIB) < 0.1
        assert cache.share(4 * MIB, 8 * MIB) > 0.9
        assert cache.share(16 * MIB, size) < 0.1
        assert cache.share(0, 0) == 0.0


def test_a_file_larger_than_memory_can_be_looked_at(tmp_path: Path) -> None:
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("no room is given here that is not there")
    path = tmp_path / "large"
    path.touch()
    size = 1 << 40
    os.truncate(path, size)
    with path.open("rb") as file, contextlib.closing(PageCache(file.fileno(), size)) as cache:
        assert cache.share(0, 1) == 0
        file.read(1)
        assert cache.share(0, 1) == 1


def test_an_empty_file_is_in_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert cached_share(tmp_path / "empty") == 1.0


def test_a_file_of_one_byte_can_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    assert cached_share(tmp_path / "one") == 1.0


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cached_share(tmp_path / "absent")


UNPRIVILEGED = """
import os, sys
from worker.storage import PageCache
fd, size = int(sys.argv[1]), int(sys.argv[2])
os.setuid(65534)
print(PageCache(fd, size).share(0, size))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_know_is_not_told_that_everything_is_cached(tmp_path: Path) -> None:
    # The kernel answers "resident" for every page to those who could not write to the file.
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * mmap.PAGESIZE))
    path.chmod(0o444)
    with path.open("rb") as file:
        command = [sys.executable, "-c", UNPRIVILEGED, str(file.fileno()), str(4 * mmap.PAGESIZE)]
        done = subprocess.run(
            command, cwd=ROOT, pass_fds=(file.fileno(),), capture_output=True, text=True, timeout=60, check=True
        )
    assert done.stdout.strip() == "0.0"


GIB = 1 << 30


class Machine:
    """A made-up machine: its memory, its groups, and which group this process is in."""

    def __init__(self, folder: Path, own: str = "0::/\n", available_gib: float = 100) -> None:
        self.root = folder / "cgroup"
        self.own = folder / "own"
        self.own.write_text(own)
        self.info = folder / "meminfo"
        self.info.write_text(f"MemTotal: 1 kB\nMemAvailable:   {int(available_gib * MIB)} kB\n")

    def v2(self, group: str, limit: str, used_gib: float, inactive_gib: float) -> None:
        self._write(
            group, {"memory.max": limit, "memory.current": used_gib}, f"inactive_file {int(inactive_gib * GIB)}"
        )

    def v1(self, group: str, limit: str, used_gib: float, inactive_gib: float) -> None:
        names = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used_gib}
        self._write(f"memory/{group}", names, f"inactive_file 1\ntotal_inactive_file {int(inactive_gib * GIB)}")

    def _write(self, group: str, values: dict[str, str | float], stat: str) -> None:
        folder = self.root / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (folder / name).write_text(value if isinstance(value, str) else str(int(value * GIB)))
        (folder / "memory.stat").write_text(f"anon 5\n{stat}\nshmem 7\n")

    def headroom_gib(self) -> float | None:
        found = memory_headroom_bytes(self.root, self.own, self.info)
        return None if found is None else found / GIB


def test_without_a_limit_the_machine_decides(tmp_path: Path) -> None:
    machine = Machine(tmp_path, available_gib=12)
    assert machine.headroom_gib() == 12
    machine.v2("", "max", 3, 1)
    machine.v1("", str(0x7FFFFFFFFFFFF000), 3, 1)
    assert machine.headroom_gib() == 12


def test_page_cache_that_is_not_in_use_counts_as_free(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.v2("", str(16 * GIB), 10, 4)
    assert machine.headroom_gib() == 10


def test_the_older_interface_is_read_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, own="5:cpu,cpuacct:/\n4:memory:/\n")
    machine.v1("", str(16 * GIB), 10, 1)
    assert machine.headroom_gib() == 7


@pytest.mark.parametrize("own", ["0::/pod/box\n", "3:cpu:/elsewhere\n0::/pod/box\n"])
def test_the_tightest_group_around_the_process_counts(own: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, own=own)
    machine.v2("pod", str(8 * GIB), 5, 0)
    machine.v2("pod/box", str(6 * GIB), 1, 0)
    machine.v2("other", str(GIB), 1, 0)
    assert machine.headroom_gib() == 3


def test_a_path_of_the_host_that_is_not_here_leaves_the_containers_root(tmp_path: Path) -> None:
    machine = Machine(tmp_path, own="4:memory:/docker/0123abcd\n")
    machine.v1("", str(2 * GIB), 1, 0)
    assert machine.headroom_gib() == 1


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.v2("", str(GIB), 2, 0)
    assert machine.headroom_gib() == 0


def test_when_nothing_tells_nothing_is_claimed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.info.write_text("MemTotal: 5 kB\n")
    assert machine.headroom_gib() is None
    assert memory_headroom_bytes(tmp_path / "a", tmp_path / "b", tmp_path / "c") is None


HEADROOM = """
import sys
sys.stdin.readline()
from worker.storage import memory_headroom_bytes
print(memory_headroom_bytes())
"""


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """A real memory group of 300 MB."""
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(base) / f"headroom-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / limit).exists():
                (group / limit).write_text(str(300 * MIB))
                break
            group.rmdir()
    else:
        pytest.skip("no memory group can be made here")
    yield group
    group.rmdir()


def test_a_real_memory_group_limits_what_is_left(limited_group: Path) -> None:
    command = [sys.executable, "-c", HEADROOM]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        (limited_group / "cgroup.procs").write_text(str(process.pid))
        printed, _ = process.communicate("go\n", timeout=60)
    assert 100 * MIB < int(printed) <= 300 * MIB
