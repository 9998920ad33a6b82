"""What a little of a file read in place tells, and when it tells nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from worker import glimpse
from worker.glimpse import GLIMPSE_BYTES, FirstGlimpse

MANY_BYTES = 1 << 50


def ended(what: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not what():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def no_glimpse_runs() -> bool:
    return all(thread.name != "glimpse" for thread in threading.enumerate())


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(4 * GLIMPSE_BYTES))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if glimpse._cached(path):
        pytest.skip("this filesystem does not let go of pages")
    return path


def test_a_rate_is_bytes_of_this_file_per_second(cold: Path) -> None:
    began_s = time.monotonic()
    rate = glimpse.rate(cold, 0)
    assert GLIMPSE_BYTES / (time.monotonic() - began_s) <= rate < MANY_BYTES


def test_a_file_shorter_than_a_glimpse_counts_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 10)
    assert 0 < glimpse.rate(path, 0) <= 10 / 1e-9


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        glimpse.rate(tmp_path / "absent", 0)


def test_a_file_that_ends_before_the_glimpse_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with pytest.raises(OSError, match="it ends before byte 4,096"):
        glimpse.rate(path, 4096)


def test_storage_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    monkeypatch.setattr(glimpse, "LIMIT_S", 0.1)
    with pytest.raises(TimeoutError, match=r"fifo: no answer within 0\.1 s"):
        glimpse.rate(path, 0)
    # Lets the thread go that waits for a writer.
    os.close(os.open(path, os.O_RDWR))


def test_the_first_glimpse_is_known_after_a_while(cold: Path) -> None:
    first = FirstGlimpse(cold)
    ended(lambda: first.rate is not None)
    assert first.rate is not None
    assert first.rate > 0


def test_the_first_glimpse_reads_no_more_than_the_start(cold: Path) -> None:
    first = FirstGlimpse(cold)
    ended(lambda: first.rate is not None)
    with cold.open("rb") as file, glimpse.contextlib.closing(glimpse.PageCache(file.fileno(), 4 << 20)) as cache:
        assert cache.share(0, GLIMPSE_BYTES) == 1.0
        assert cache.share(3 * GLIMPSE_BYTES, 4 * GLIMPSE_BYTES) == 0.0


def test_a_start_in_the_page_cache_says_nothing(cold: Path) -> None:
    with cold.open("rb") as file:
        file.read(4096)
    first = FirstGlimpse(cold)
    ended(no_glimpse_runs)
    assert first.rate is None


@pytest.mark.parametrize("content", [None, b""], ids=["absent", "empty"])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    first = FirstGlimpse(path)
    ended(no_glimpse_runs)
    assert first.rate is None


def test_nobody_waits_for_a_first_glimpse_that_hangs(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    first = FirstGlimpse(path)
    assert first.rate is None
    # A writer lets it go.
    fd = os.open(path, os.O_RDWR)
    ended(no_glimpse_runs)
    os.close(fd)
