"""The digest of a file that is being written out of order."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.digest import READ_BYTES, TrailingDigest

CONTENT = random.Random(3).randbytes(300_000)  # noqa: S311 - test data


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def digests_alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "digest"]


def wait_gone() -> bool:
    for thread in digests_alive():
        thread.join(30)
    return not digests_alive()


def open_fds() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def write(fd: int, digest: TrailingDigest, start: int, end: int) -> None:
    os.pwrite(fd, CONTENT[start:end], start)
    digest.wrote(start, end)


def test_a_file_written_from_its_end_to_its_start_has_its_digest(fd: int) -> None:
    digest = TrailingDigest(fd, len(CONTENT))
    for start in reversed(range(0, len(CONTENT), 50_000)):
        assert not digest.complete
        write(fd, digest, start, min(start + 50_000, len(CONTENT)))
    assert digest.complete
    assert digest.result() == hashlib.sha256(CONTENT).hexdigest()


@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(1, len(CONTENT) - 1), max_size=20), seed=st.integers(0, 1000))
def test_any_cuts_in_any_order_give_the_same_digest(
    tmp_path_factory: pytest.TempPathFactory, cuts: set[int], seed: int
) -> None:
    edges = [0, *sorted(cuts), len(CONTENT)]
    spans = list(itertools.pairwise(edges))
    random.Random(seed).shuffle(spans)  # noqa: S311 - test data
    fd = os.open(tmp_path_factory.mktemp("cuts") / "file", os.O_RDWR | os.O_CREAT)
    try:
        digest = TrailingDigest(fd, len(CONTENT))
        for start, end in spans:
            write(fd, digest, start, end)
        assert digest.result() == hashlib.sha256(CONTENT).hexdigest()
    finally:
        os.close(fd)


def test_writers_in_many_threads_may_tell_it_at_once(fd: int) -> None:
    digest = TrailingDigest(fd, len(CONTENT))
    starts = range(0, len(CONTENT), 10_000)
    threads = [
        threading.Thread(target=write, args=(fd, digest, start, min(start + 10_000, len(CONTENT)))) for start in starts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digest.result() == hashlib.sha256(CONTENT).hexdigest()


def test_a_file_larger_than_one_read_is_hashed_whole(fd: int) -> None:
    size = 2 * READ_BYTES + 17
    os.truncate(fd, size)
    digest = TrailingDigest(fd, size)
    digest.wrote(0, size)
    assert digest.result() == hashlib.sha256(bytes(size)).hexdigest()


def test_an_empty_file_has_the_digest_of_nothing(fd: int) -> None:
    assert TrailingDigest(fd, 0).result() == hashlib.sha256().hexdigest()


def test_the_file_may_be_closed_by_its_owner_meanwhile(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    digest = TrailingDigest(fd, len(CONTENT))
    os.pwrite(fd, CONTENT, 0)
    os.close(fd)
    digest.wrote(0, len(CONTENT))
    assert digest.result() == hashlib.sha256(CONTENT).hexdigest()


def test_an_abandoned_digest_leaves_no_thread(fd: int) -> None:
    digest = TrailingDigest(fd, len(CONTENT))
    write(fd, digest, 0, 1000)
    digest.abandon()
    assert wait_gone()


def test_abandoning_one_that_is_done_changes_nothing(fd: int) -> None:
    digest = TrailingDigest(fd, 10)
    write(fd, digest, 0, 10)
    assert digest.result() == hashlib.sha256(CONTENT[:10]).hexdigest()
    digest.abandon()
    assert wait_gone()


def test_waiting_can_be_ended_from_outside(fd: int) -> None:
    class Enough(Exception):
        pass

    def check() -> None:
        raise Enough

    digest = TrailingDigest(fd, 10)
    with pytest.raises(Enough):
        digest.result(check)
    digest.abandon()
    assert wait_gone()


def test_bytes_that_were_announced_but_are_not_there_are_an_error_and_no_endless_wait(fd: int) -> None:
    digest = TrailingDigest(fd, 1000)
    os.pwrite(fd, bytes(600), 0)
    digest.wrote(0, 1000)
    with pytest.raises(OSError, match="ends at byte 600, although 1,000 were written"):
        digest.result()


def test_without_a_thread_for_it_nothing_is_left_open(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = open_fds()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="no thread could be started"):
        TrailingDigest(fd, len(CONTENT))
    assert open_fds() == before


# Threads say what killed them, which is no error here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [MemoryError, SystemExit])
def test_a_part_has_no_digest(fd: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    real = TrailingDigest._block
    calls: list[int] = []

    def block(digest: TrailingDigest, buffer: memoryview, start: int, end: int) -> memoryview:
        calls.append(start)
        if len(calls) == 2:
            raise error
        return real(digest, buffer[:50_000], start, min(end, start + 50_000))

    monkeypatch.setattr(TrailingDigest, "_block", block)
    digest = TrailingDigest(fd, len(CONTENT))
    write(fd, digest, 0, len(CONTENT))
    words = {MemoryError: "no memory is left", SystemExit: "only 50,000 of 300,000 bytes were hashed"}
    with pytest.raises(OSError, match=words[error]):
        digest.result()
    assert wait_gone()
