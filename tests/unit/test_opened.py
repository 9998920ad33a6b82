"""A file opened for reading: past the page cache, through it, and what of it is in there."""

from __future__ import annotations

import itertools
import mmap
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker.opened import Opened, direct_latency_s

PAGES = 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def opened(path: Path) -> list[int]:
    """The descriptors of this process that stand for `path`."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = link.readlink()
        except FileNotFoundError:
            continue
        if target == path:
            found.append(int(link.name))
    return sorted(found)


def direct_or_skip(path: Path) -> None:
    if direct_latency_s(path) is None:
        pytest.skip("no O_DIRECT on this filesystem")


def test_a_file_is_opened_once_until_it_is_read_the_other_way(path: Path) -> None:
    direct_or_skip(path)
    with Opened(path, direct=True) as file:
        assert opened(path) == [file.fd]
        assert file.plain_fd != file.fd
        assert opened(path) == sorted([file.fd, file.plain_fd])
        assert os.pread(file.plain_fd, 7, 3) == path.read_bytes()[3:10]
    assert opened(path) == []


def test_a_file_read_through_the_page_cache_is_opened_once(path: Path) -> None:
    with Opened(path, direct=False) as file:
        assert file.fd == file.plain_fd
        assert opened(path) == [file.fd]
    assert opened(path) == []


def test_direct_reading_leaves_the_page_cache_alone(path: Path) -> None:
    direct_or_skip(path)
    with Opened(path, direct=True) as file, mmap.mmap(-1, PAGES * mmap.PAGESIZE) as block:
        cache = file.page_cache(PAGES * mmap.PAGESIZE)
        assert cache is not None
        assert os.preadv(file.fd, [block], 0) == PAGES * mmap.PAGESIZE
        assert cache.share(0, PAGES * mmap.PAGESIZE) == 0
        assert os.pread(file.plain_fd, mmap.PAGESIZE, 0) == block[: mmap.PAGESIZE]
        assert cache.share(0, mmap.PAGESIZE) == 1


def test_what_cannot_be_mapped_has_no_page_cache_to_look_at() -> None:
    with Opened(Path("/proc/self/mountinfo"), direct=False) as file:
        assert file.page_cache(mmap.PAGESIZE) is None


def test_an_error_while_it_is_open_closes_it(path: Path) -> None:
    with pytest.raises(RuntimeError), Opened(path, direct=False):
        raise RuntimeError
    assert opened(path) == []


def test_asking_how_far_a_file_is_fails_like_reading(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        direct_latency_s(tmp_path / "absent")


def test_what_has_no_direct_reading_says_so() -> None:
    assert direct_latency_s(Path("/proc/self/mountinfo")) is None


MS = 1e-3


@pytest.mark.parametrize(
    ("size", "took_ms", "shortest_ms", "reads"),
    [
        (0, [4], 4, 1),
        (mmap.PAGESIZE, [4], 4, 1),
        ((64 << 20) - 1, [4], 4, 1),
        (64 << 20, [1.5, 0.5, 1.25, 1, 1, 1, 1, 1], 0.5, 8),
        # What takes long is far, and finding out more would only take longer.
        (1 << 30, [3, 3, 4], 3, 3),
        (1 << 30, [20, 0.5], 0.5, 2),
    ],
)
def test_the_shortest_of_a_few_reads_tells_how_far_a_file_is(
    size: int, took_ms: list[float], shortest_ms: float, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, size)
    direct_or_skip(path)
    offsets: list[int] = []
    clock = SimpleNamespace(now_s=0.0)
    real = os.preadv

    def preadv(fd: int, buffers: list[mmap.mmap], offset: int) -> int:
        clock.now_s += took_ms[len(offsets)] * MS
        offsets.append(offset)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr("worker.opened.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    assert direct_latency_s(path) == pytest.approx(shortest_ms * MS)
    assert len(offsets) == reads
    assert all(after - before >= 4 << 20 for before, after in itertools.pairwise(offsets))
