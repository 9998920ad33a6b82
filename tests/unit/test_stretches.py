"""How a file is shared out among readers: every byte once, apart from each other, and to the end at the same time."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from worker.stretches import BLOCK_BYTES, STRETCH_BYTES, Stretches

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


def test_one_reader_goes_through_the_file_in_order() -> None:
    size = 2 * STRETCH_BYTES + 12_345
    taken = blocks(Stretches(size), [0])
    starts = [start for _, start, _ in taken]
    assert starts == sorted(starts)
    assert gapless([(start, end) for _, start, end in taken], size)
    assert {end - start for _, start, end in taken[:-1]} == {BLOCK_BYTES}


def test_readers_are_in_stretches_of_their_own_as_long_as_there_are_enough() -> None:
    stretches = Stretches(8 * STRETCH_BYTES)
    for _ in range(STRETCH_BYTES // BLOCK_BYTES):
        round_ = [stretches.take(reader, ALL) for reader in range(4)]
        assert len({block[0] // STRETCH_BYTES for block in round_ if block}) == 4


def test_readers_without_a_stretch_help_others_and_all_end_together() -> None:
    # Four stretches for three readers: the last one is shared.
    taken = blocks(Stretches(4 * STRETCH_BYTES), [0, 1, 2])
    counts = [sum(reader == one for reader, _, _ in taken) for one in range(3)]
    assert max(counts) - min(counts) <= 1


def test_a_file_smaller_than_a_stretch_is_shared_by_all() -> None:
    taken = blocks(Stretches(6 * BLOCK_BYTES), [0, 1, 2, 3, 4, 5])
    assert sorted(reader for reader, _, _ in taken) == [0, 1, 2, 3, 4, 5]


def test_what_readers_leave_is_taken_on_by_others() -> None:
    size = 3 * STRETCH_BYTES
    stretches = Stretches(size)
    spans = [stretches.take(reader, ALL) for reader in (7, 8)]
    stretches.leave()
    assert stretches.left_bytes == size - 2 * BLOCK_BYTES
    assert stretches.first == BLOCK_BYTES
    rest = blocks(stretches, [0, 1])
    assert gapless([*(span for span in spans if span), *((start, end) for _, start, end in rest)], size)


def test_an_empty_file_has_nothing_to_take() -> None:
    stretches = Stretches(0)
    assert stretches.take(0, ALL) is None
    assert (stretches.left_bytes, stretches.first) == (0, 0)


@given(
    size=st.integers(0, 3 * STRETCH_BYTES),
    turns=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 2 * BLOCK_BYTES), st.booleans()), max_size=80),
)
def test_every_byte_is_handed_out_once_whoever_asks_for_how_much(size: int, turns: list[tuple[int, int, bool]]) -> None:
    stretches = Stretches(size)
    spans = []
    for reader, most_bytes, leaves in turns:
        if leaves:
            stretches.leave()
        if (block := stretches.take(reader, most_bytes)) is not None:
            assert 0 < block[1] - block[0] <= min(most_bytes, BLOCK_BYTES)
            spans.append(block)
        assert stretches.left_bytes == size - sum(end - start for start, end in spans)
    spans += [(start, end) for _, start, end in blocks(stretches, [0, 1, 2])]
    assert gapless(spans, size)


def test_threads_get_different_blocks() -> None:
    stretches = Stretches(STRETCH_BYTES)
    spans: list[tuple[int, int]] = []

    def work(reader: int) -> None:
        while (block := stretches.take(reader, 4096)) is not None:
            spans.append(block)

    threads = [threading.Thread(target=work, args=(reader,)) for reader in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gapless(spans, STRETCH_BYTES)
