from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import resumable
from worker.resumable import Resumable

SIZE = 1000


def opened(folder: Path, size: int = SIZE) -> Resumable:
    return Resumable(folder, "key", size)


def write(target: Resumable, start: int, end: int) -> None:
    target.write(memoryview(bytes(byte % 251 for byte in range(start, end))), start)


spans = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, 400)).map(lambda s: (s[0], min(SIZE, s[0] + s[1]))), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(spans, st.integers(1, 300))
def test_what_was_written_and_what_is_missing_make_up_the_file(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, int]], piece: int
) -> None:
    folder = tmp_path_factory.mktemp("resumable")
    with opened(folder) as target:
        for start, end in written:
            write(target, start, end)
    with opened(folder) as target:
        there = [byte for start, end in target.ranges for byte in range(start, end)]
        missing = [byte for start, end in target.missing(piece) for byte in range(start, end)]
        assert sorted(there + missing) == list(range(SIZE))
        assert set(there) == {byte for start, end in written for byte in range(start, end)}
        assert target.there_bytes == len(there)
        assert all(0 < end - start <= piece for start, end in target.missing(piece))
        assert all(a_end < b_start for (_, a_end), (b_start, _) in zip(target.ranges, target.ranges[1:], strict=False))
        content = target.path.read_bytes()
        assert len(content) == SIZE
        assert all(content[byte] == byte % 251 for byte in there)


def test_a_whole_file_is_handed_over_and_leaves_no_journal(tmp_path: Path) -> None:
    with opened(tmp_path) as target:
        write(target, 0, SIZE)
        path = target.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_nothing_is_left_of_what_is_discarded(tmp_path: Path) -> None:
    with opened(tmp_path) as target:
        write(target, 0, 10)
        target.discard()
    assert list(tmp_path.iterdir()) == []


def test_what_is_forgotten_comes_again(tmp_path: Path) -> None:
    with opened(tmp_path) as target:
        write(target, 0, 10)
        target.forget()
        write(target, 20, 30)
    with opened(tmp_path) as target:
        assert target.ranges == [(20, 30)]


@pytest.mark.parametrize(
    ("journal", "ranges"),
    [
        (b"0 10\n20 30\n40 4", [(0, 10), (20, 30)]),
        (b"0 10\n10 20\n", [(0, 20)]),
        (b"0 10\n5 30\n", [(0, 30)]),
        (b"10 100", [(10, 100)]),
        (b"0 10\nx y\n\n1 2 3\n-5 5\n50 40\n0 5000\n", [(0, 10)]),
        (b"\x00\xff\n", []),
        (b"", []),
    ],
)
def test_a_torn_journal_says_less_and_never_more(tmp_path: Path, journal: bytes, ranges: list[tuple[int, int]]) -> None:
    with opened(tmp_path):
        pass
    (tmp_path / "key.ranges").write_bytes(journal)
    with opened(tmp_path) as target:
        assert target.ranges == ranges
        write(target, 500, 600)
    with opened(tmp_path) as target:
        assert (500, 600) in target.ranges


def test_another_size_is_another_file(tmp_path: Path) -> None:
    with opened(tmp_path) as target:
        write(target, 0, 10)
    with opened(tmp_path, 500) as target:
        assert target.ranges == []
        assert target.path.read_bytes() == bytes(500)


def test_room_is_claimed_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, 1 << 20) as target:
        assert target.path.stat().st_blocks * 512 >= 1 << 20


def test_a_full_disk_is_found_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable.ctypes, "get_errno", lambda: errno.ENOSPC)
    # More than any filesystem can have.
    with pytest.raises(OSError, match="No space left on device"):
        opened(tmp_path, 1 << 62)
    assert list(tmp_path.iterdir()) == []


def test_a_filesystem_that_cannot_reserve_makes_a_file_with_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unable:
        @staticmethod
        def fallocate(*_: object) -> int:
            return -1

    monkeypatch.setattr(resumable.ctypes, "CDLL", lambda *_, **__: Unable)
    monkeypatch.setattr(resumable.ctypes, "get_errno", lambda: errno.EOPNOTSUPP)
    with opened(tmp_path) as target:
        assert target.path.stat().st_size == SIZE
