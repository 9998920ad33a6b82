"""How a file is shared out among readers: every byte once, apart from each other, and to the end at the same time."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from worker.stretches import BLOCK_BYTES, CHUNK_BYTES, Stretches

ALL = 1 << 50


def blocks(stretches: Stretches, order: list[int]) -> list[tuple[int, int, int]]:
    """Let readers take turns in `order`, over and over, until nothing is left."""
    taken = []
    while stretches.left_bytes:
        found = [(reader, stretches.take(reader, ALL)) for reader in order]
        taken += [(reader, *block) for reader, block in found if block is not None]
    return taken


def gapless(spans: list[tuple[int, int]], size_bytes: int) -> bool:
    ends = [0, *(end for _, end in sorted(spans))]
    return [start for start, _ in sorted(spans)] == ends[:-1] and ends[-1] == size_bytes


def shared(size_bytes: int, readers: int, most_bytes: int | None = None) -> Stretches:
    stretches = Stretches(size_bytes)
    stretches.share_out(readers, most_bytes=most_bytes)
    return stretches


def test_one_reader_goes_through_the_file_in_order() -> None:
    size = 2 * CHUNK_BYTES + 12_345
    for stretches in (Stretches(size), shared(size, 1), shared(size, 1, CHUNK_BYTES)):
        taken = blocks(stretches, [0])
        starts = [start for _, start, _ in taken]
        assert starts == sorted(starts)
        assert gapless([(start, end) for _, start, end in taken], size)
        assert {end - start for _, start, end in taken[:-1]} == {BLOCK_BYTES}


def test_each_reader_goes_through_its_own_part_of_the_file_in_order() -> None:
    size = 12 * CHUNK_BYTES
    taken = blocks(shared(size, 4), [0, 1, 2, 3])
    for reader in range(4):
        part = [start for one, start, _ in taken if one == reader]
        assert part == list(range(reader * size // 4, (reader + 1) * size // 4, BLOCK_BYTES))


def test_a_file_that_is_to_grow_from_its_start_is_cut_into_short_stretches() -> None:
    stretches = shared(12 * CHUNK_BYTES, 4, CHUNK_BYTES)
    for _ in range(CHUNK_BYTES // BLOCK_BYTES):
        round_ = [stretches.take(reader, ALL) for reader in range(4)]
        assert [block[0] // CHUNK_BYTES for block in round_ if block] == [0, 1, 2, 3]
    assert stretches.first == 4 * CHUNK_BYTES


def test_stretches_are_no_shorter_than_a_chunk() -> None:
    stretches = shared(3 * CHUNK_BYTES, 12)
    assert [stretches.take(reader, ALL) for reader in range(3)] == [
        (at, at + BLOCK_BYTES) for at in range(0, 3 * CHUNK_BYTES, CHUNK_BYTES)
    ]


def test_readers_without_a_stretch_help_others_and_all_end_together() -> None:
    # Four stretches for three readers: the last one is shared.
    taken = blocks(shared(4 * CHUNK_BYTES, 3, CHUNK_BYTES), [0, 1, 2])
    counts = [sum(reader == one for reader, _, _ in taken) for one in range(3)]
    assert max(counts) - min(counts) <= 1


def test_a_file_smaller_than_a_stretch_is_shared_by_all() -> None:
    taken = blocks(shared(6 * BLOCK_BYTES, 6), [0, 1, 2, 3, 4, 5])
    assert sorted(reader for reader, _, _ in taken) == [0, 1, 2, 3, 4, 5]


def test_what_readers_leave_is_shared_out_anew() -> None:
    size = 3 * CHUNK_BYTES
    stretches = shared(size, 2)
    spans = [stretches.take(reader, ALL) for reader in (7, 8)]
    stretches.share_out(1)
    assert stretches.left_bytes == size - 2 * BLOCK_BYTES
    assert stretches.first == BLOCK_BYTES
    rest = blocks(stretches, [0])
    assert [start for _, start, _ in rest] == sorted(start for _, start, _ in rest)
    assert gapless([*(span for span in spans if span), *((start, end) for _, start, end in rest)], size)


def test_an_empty_file_has_nothing_to_take() -> None:
    stretches = Stretches(0)
    assert stretches.take(0, ALL) is None
    assert (stretches.left_bytes, stretches.first) == (0, 0)


@given(
    size=st.integers(0, 3 * CHUNK_BYTES),
    turns=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 2 * BLOCK_BYTES), st.integers(0, 20)), max_size=80),
)
def test_every_byte_is_handed_out_once_whoever_asks_for_how_much(size: int, turns: list[tuple[int, int, int]]) -> None:
    stretches = Stretches(size)
    spans = []
    for reader, most_bytes, readers in turns:
        if readers:
            stretches.share_out(readers, most_bytes=most_bytes if readers > 10 else None)
        if (block := stretches.take(reader, most_bytes)) is not None:
            assert 0 < block[1] - block[0] <= min(most_bytes, BLOCK_BYTES)
            spans.append(block)
        assert stretches.left_bytes == size - sum(end - start for start, end in spans)
    spans += [(start, end) for _, start, end in blocks(stretches, [0, 1, 2])]
    assert gapless(spans, size)


def test_threads_get_different_blocks() -> None:
    stretches = Stretches(CHUNK_BYTES)
    spans: list[tuple[int, int]] = []

    def work(reader: int) -> None:
        while (block := stretches.take(reader, 4096)) is not None:
            spans.append(block)

    threads = [threading.Thread(target=work, args=(reader,)) for reader in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gapless(spans, CHUNK_BYTES)
