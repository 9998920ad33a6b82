"""Reader threads: every byte in its place, by every method, and an end to them in every case."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.opened import direct_latency_s
from worker.readers import BLOCK_BYTES, BlockCopy, Method, Tally

MIB = 1 << 20
SIZE = 3 * BLOCK_BYTES + 12_345
SINGLE, MANY = Method(1, direct=False), Method(5, direct=False)
DIRECT = Method(4, direct=True)
REQUEST_BYTES = 1 << 20


def nothing(*_: int) -> None:
    pass


def threads_left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("landing-")]


class Files:
    """A source of random bytes and an empty target beside it."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        self.content = os.urandom(SIZE)
        self.source.write_bytes(self.content)
        self.target = folder / "target"
        self.fd = os.open(self.target, os.O_RDWR | os.O_CREAT)
        self.spans: list[tuple[int, int]] = []

    def copy(self, size_bytes: int = SIZE) -> BlockCopy:
        return BlockCopy(self.source, self.fd, size_bytes, lambda start, end: self.spans.append((start, end)))

    def copied(self) -> bool:
        return self.target.read_bytes() == self.content


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    os.close(made.fd)
    assert threads_left() == []


def direct_or_skip(files: Files) -> None:
    if direct_latency_s(files.source) is None:
        pytest.skip("no O_DIRECT on this filesystem")


def test_a_method_reads_as_words() -> None:
    assert [str(m) for m in (DIRECT, SINGLE)] == ["O_DIRECT, 4 readers", "buffered, 1 reader"]


@pytest.mark.parametrize("method", [SINGLE, MANY, DIRECT], ids=str)
def test_every_byte_arrives_by_every_method(files: Files, method: Method) -> None:
    if method.direct:
        direct_or_skip(files)
    copy = files.copy()
    assert copy.run(method, nothing) > 0
    assert files.copied()
    assert copy.left_bytes == 0
    assert min(files.spans)[0] == 0
    assert sum(end - start for start, end in files.spans) == SIZE
    assert copy.tally.moved_bytes == SIZE


def test_methods_can_follow_one_another(files: Files) -> None:
    direct_or_skip(files)
    copy = files.copy()
    copy.run(DIRECT, nothing, limit_bytes=BLOCK_BYTES)
    assert (copy.tally.moved_bytes, copy.left_bytes) == (BLOCK_BYTES, SIZE - BLOCK_BYTES)
    copy.run(SINGLE, nothing, limit_bytes=BLOCK_BYTES)
    copy.run(MANY, nothing)
    assert files.copied()


def test_a_limit_of_bytes_that_is_no_whole_block_is_kept(files: Files) -> None:
    copy = files.copy()
    copy.run(SINGLE, nothing, limit_bytes=MIB)
    assert copy.tally.moved_bytes == MIB
    copy.run(SINGLE, nothing)
    assert files.copied()


def test_a_limit_of_time_lets_the_block_in_hand_finish_and_loses_nothing(files: Files) -> None:
    copy = files.copy()
    copy.run(SINGLE, nothing, limit_s=0.0)
    assert copy.tally.moved_bytes == 0
    copy.run(MANY, nothing, limit_s=1e-4)
    assert copy.tally.moved_bytes + copy.left_bytes == SIZE
    copy.run(SINGLE, nothing)
    assert files.copied()


def test_running_on_after_the_end_does_nothing(files: Files) -> None:
    copy = files.copy()
    copy.run(SINGLE, nothing)
    before = copy.tally
    copy.run(MANY, nothing)
    assert copy.tally == before


def test_an_empty_file_is_copied_by_no_thread(files: Files) -> None:
    files.copy(0).run(DIRECT, nothing)
    assert files.spans == []


@pytest.mark.parametrize("method", [SINGLE, DIRECT], ids=str)
def test_reads_that_return_less_than_was_asked_for_are_put_together(
    files: Files, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method.direct:
        direct_or_skip(files)
    real = os.preadv
    # An odd count: what follows begins where no page does, which O_DIRECT would refuse.
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: min(real(fd, views, offset), 1_000_003))
    files.copy().run(method, nothing)
    monkeypatch.undo()
    assert files.copied()


def test_a_reader_asks_for_what_follows_in_one_request_after_another(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv
    asked: list[tuple[int, int]] = []

    def preadv(fd: int, views: list[memoryview], offset: int) -> int:
        asked.append((offset, sum(map(len, views))))
        return real(fd, views, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    files.copy().run(Method(1, direct=False, request_bytes=REQUEST_BYTES), nothing)
    assert [offset for offset, _ in asked] == list(range(0, SIZE, REQUEST_BYTES))
    assert {length for _, length in asked} == {REQUEST_BYTES}
    # What is written is whole blocks all the same.
    assert [end - start for start, end in files.spans] == [BLOCK_BYTES] * 3 + [SIZE % BLOCK_BYTES]


def test_writes_that_take_less_than_was_given_are_put_together(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:1_000_003], offset))
    files.copy().run(MANY, nothing)
    monkeypatch.undo()
    assert files.copied()


def test_a_sparse_source_arrives_as_it_reads(files: Files) -> None:
    with files.source.open("wb") as file:
        file.truncate(SIZE)
        file.seek(2 * BLOCK_BYTES)
        file.write(b"island")
    files.content = files.source.read_bytes()
    files.copy().run(MANY, nothing)
    assert files.copied()


def test_a_source_that_is_shorter_than_it_was_is_named_with_the_byte_it_ends_at(files: Files) -> None:
    os.truncate(files.source, BLOCK_BYTES + 10)
    with pytest.raises(OSError, match=f"it ends at byte {BLOCK_BYTES + 10:,} of {SIZE:,}") as caught:
        files.copy().run(SINGLE, nothing)
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(files.source)


def test_a_source_that_grows_is_copied_up_to_the_size_it_had(files: Files) -> None:
    with files.source.open("ab") as file:
        file.write(b"more")
    files.copy().run(SINGLE, nothing)
    assert files.copied()


def test_a_source_that_is_not_there_fails_the_copy(files: Files) -> None:
    files.source.unlink()
    with pytest.raises(FileNotFoundError):
        files.copy().run(MANY, nothing)


def test_a_target_that_cannot_be_written_fails_the_copy(files: Files) -> None:
    read_only = os.open(files.target, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            BlockCopy(files.source, read_only, SIZE, nothing).run(MANY, nothing)
    finally:
        os.close(read_only)


def test_a_thread_that_cannot_start_stops_the_others(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "landing-2":
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="no thread could be started"):
        files.copy().run(DIRECT, nothing)
    assert threads_left() == []


def test_a_request_that_came_counts_as_movement_before_its_block_is_whole(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv
    copy = files.copy()
    moved_s: list[float] = []

    def preadv(fd: int, views: list[memoryview], offset: int) -> int:
        moved_s.append(copy.moved_at_s)
        return real(fd, views, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    copy.run(Method(1, direct=False, request_bytes=REQUEST_BYTES), nothing)
    assert len(set(moved_s)) == len(moved_s) == SIZE // REQUEST_BYTES + (SIZE % REQUEST_BYTES > 0)


def test_what_the_watch_raises_stops_the_copy_and_its_threads(files: Files) -> None:
    class Enough(Exception):
        pass

    def watch() -> None:
        raise Enough

    copy = files.copy()
    with pytest.raises(Enough):
        copy.run(SINGLE, watch)
    assert threads_left() == []
    before = copy.tally
    copy.run(SINGLE, nothing)
    assert copy.tally == before  # a halted copy takes nothing on


def test_time_is_split_into_reading_and_writing(files: Files) -> None:
    copy = files.copy()
    copy.run(SINGLE, nothing)
    assert copy.tally.read_s > 0
    assert copy.tally.write_s > 0


def test_tallies_can_be_subtracted() -> None:
    assert Tally(10, 8, 3.0, 4.0, 2.0) - Tally(4, 3, 1.0, 1.5, 0.5) == Tally(6, 5, 2.0, 2.5, 1.5)


def make_cold(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_what_is_in_the_page_cache_is_not_read_from_storage_again(files: Files) -> None:
    direct_or_skip(files)
    make_cold(files.source)
    with files.source.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), BLOCK_BYTES, BLOCK_BYTES)
    copy = files.copy()
    copy.run(DIRECT, nothing)
    assert files.copied()
    assert copy.tally.cold_bytes == SIZE - BLOCK_BYTES
    assert copy.tally.cold_s <= copy.tally.read_s


def test_a_landed_file_is_in_the_page_cache_and_the_source_is_not(files: Files) -> None:
    from worker.storage import cached_share  # noqa: PLC0415 - only this test looks

    direct_or_skip(files)
    make_cold(files.source)
    files.copy().run(DIRECT, nothing)
    assert cached_share(files.target) > 0.9
    assert cached_share(files.source) < 0.1


def test_a_glimpse_reads_a_little_of_what_comes_next_and_moves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * (3 * BLOCK_BYTES))
    with target.open("wb") as file:
        copy = BlockCopy(source, file.fileno(), 3 * BLOCK_BYTES, lambda *_: None)
        assert copy.glimpse() > 0
        assert (copy.tally.moved_bytes, copy.left_bytes) == (0, 3 * BLOCK_BYTES)
        copy.run(Method(1, direct=False), lambda: None)
    assert target.read_bytes() == source.read_bytes()
    source.unlink()
    with pytest.raises(FileNotFoundError):
        copy.glimpse()


def test_a_paused_stretch_ends_whole_and_the_next_goes_on_from_there(files: Files) -> None:
    copies: list[BlockCopy] = []

    def moved(start: int, end: int) -> None:
        files.spans.append((start, end))
        copies[0].pause()

    copy = BlockCopy(files.source, files.fd, SIZE, moved)
    copies.append(copy)
    for reached in (BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES, SIZE):
        copy.run(SINGLE, nothing)
        assert (copy.tally.moved_bytes, copy.left_bytes) == (reached, SIZE - reached)
    assert files.copied()
    assert sum(end - start for start, end in files.spans) == SIZE
