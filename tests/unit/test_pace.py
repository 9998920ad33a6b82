"""The choice of a method, on simulated storage: what it picks, when it gives up, and what finding out may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import pace
from worker.glimpse import GLIMPSE_BYTES
from worker.pace import FAR, MANY, MARGIN, NEAR, NEAR_S, SINGLE, WINDOW_S, Pace, Slower, first_method
from worker.readers import Method, Tally

# What the simulated storage moves at once.
BLOCK_BYTES = 4 << 20
MB = 10**6
GIB = 1 << 30
PROBE = 256 << 20


def nothing() -> None:
    pass


@dataclass
class Storage:
    """Storage and a disk with known speeds in MB/s, and a clock that only they move.

    Reading by one thread takes turns with writing; otherwise the slower of both decides.
    """

    direct: float = 1000.0
    single: float = 400.0
    many: float = 100.0
    disk: Callable[[int], float] = lambda _: 4000.0
    size_bytes: int = 4 * GIB
    cached_share: float = 0.0
    now_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    used: list[Method] = field(default_factory=list)
    glimpses: int = 0
    paused: bool = False

    @property
    def left_bytes(self) -> int:
        return self.size_bytes - self.tally.moved_bytes

    def run(
        self,
        method: Method,
        watch: Callable[[], None],
        *,
        limit_bytes: int | None = None,
        limit_s: float | None = None,
    ) -> float:
        self.used.append(method)
        began_s = self.now_s
        end = self.size_bytes if limit_bytes is None else min(self.tally.moved_bytes + limit_bytes, self.size_bytes)
        self.paused = False
        while self.tally.moved_bytes < end and not self.paused and (limit_s is None or self.now_s - began_s < limit_s):
            self._block(method, min(BLOCK_BYTES, end - self.tally.moved_bytes))
            watch()
        return max(self.now_s - began_s, 1e-9)

    def pause(self) -> None:
        self.paused = True

    def _block(self, method: Method, count: int) -> None:
        t = self.tally
        cold = t.moved_bytes >= self.cached_share * self.size_bytes
        read_s = count / (self.rate(method) * MB) if cold else 0.0
        write_s = count / (self.disk(t.moved_bytes) * MB)
        self.now_s += read_s + write_s if method == SINGLE else max(read_s, write_s)
        self.tally = Tally(
            t.moved_bytes + count,
            t.cold_bytes + (count if cold else 0),
            t.cold_s + read_s,
            t.read_s + read_s * method.readers,
            t.write_s + write_s * method.readers,
        )

    def glimpse(self) -> float:
        cold = self.tally.moved_bytes >= self.cached_share * self.size_bytes
        took_s = GLIMPSE_BYTES / (self.single * MB) if cold else 1e-9
        self.now_s += took_s
        self.glimpses += 1
        return GLIMPSE_BYTES / took_s

    def rate(self, method: Method) -> float:
        return {FAR: self.direct, SINGLE: self.single, MANY: self.many}[method]

    @property
    def nothing_s(self) -> float:
        """What the server alone would take to read the file."""
        return (1 - self.cached_share) * self.size_bytes / (self.single * MB)

    def drive(self, *, direct: bool = True, reread_bytes: int = 0, known: bool = True) -> Method:
        """`known` says whether the file's start was read in place before."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: self.now_s))
            paced = Pace(
                self,  # type: ignore[arg-type]
                cold_share=1 - self.cached_share,
                probe_bytes=PROBE,
                reread_bytes=reread_bytes,
                in_place=lambda: self.single * MB if known and not self.cached_share else None,
            )
            return paced.drive(nothing, FAR if direct else SINGLE)


def test_how_a_copy_begins_follows_how_far_its_file_is() -> None:
    methods = [first_method(latency_s) for latency_s in (None, 0.0, NEAR_S * 0.99, NEAR_S, 1.0)]
    assert methods == [SINGLE, NEAR, NEAR, FAR, FAR]
    # Both ask for as much at once as a FUSE filesystem takes: twelve requests of 1 MiB.
    assert {method.readers * method.request_bytes >= 12 << 20 for method in (NEAR, FAR)} == {True}


def test_reading_past_the_page_cache_is_kept_when_it_is_fast() -> None:
    storage = Storage()
    assert storage.drive() == FAR
    assert storage.left_bytes == 0
    # A megabyte read in place was much slower: the copy is not even paused for it.
    assert storage.used == [FAR]
    assert storage.glimpses == 0


def test_a_glimpse_is_taken_between_two_stretches_when_none_was_before() -> None:
    storage = Storage()
    assert storage.drive(known=False) == FAR
    assert storage.used == [FAR, FAR]
    assert storage.glimpses == 1


def test_reading_in_place_is_tried_where_a_glimpse_of_it_is_fast() -> None:
    storage = Storage(single=990)
    assert storage.drive() == FAR
    assert storage.used == [FAR, SINGLE, FAR]


def test_slow_storage_is_compared_without_a_glimpse() -> None:
    storage = Storage(direct=150, single=40, many=30)
    assert storage.drive() == FAR
    assert storage.used == [FAR, SINGLE, MANY, FAR]
    assert storage.glimpses == 0


def test_a_small_file_is_copied_without_finding_anything_out() -> None:
    storage = Storage(size_bytes=PROBE)
    assert storage.drive() == FAR
    assert storage.used == [FAR]
    storage = Storage(size_bytes=2 * PROBE)
    storage.drive()
    assert SINGLE not in storage.used


def test_without_direct_reading_one_sequential_reader_does_it() -> None:
    storage = Storage()
    assert storage.drive(direct=False) == SINGLE
    assert set(storage.used) == {SINGLE}


def test_many_buffered_readers_are_tried_only_on_slow_storage_and_kept_only_when_faster() -> None:
    slow_alone = Storage(single=120, many=600)
    assert slow_alone.drive(direct=False) == MANY
    with_read_ahead = Storage(single=150, many=40)
    assert with_read_ahead.drive(direct=False) == SINGLE
    assert with_read_ahead.used == [SINGLE, MANY, SINGLE]
    fast_enough = Storage(single=400, many=900)
    fast_enough.drive(direct=False)
    assert MANY not in fast_enough.used


def test_direct_reading_that_is_slower_than_the_servers_own_is_dropped() -> None:
    storage = Storage(direct=250, single=500)
    assert storage.drive() == SINGLE


def test_a_try_takes_no_longer_than_the_first_part_did() -> None:
    storage = Storage(direct=1000, single=5)
    storage.drive()
    first_s = PROBE / (1000 * MB)
    block_s = BLOCK_BYTES / (5 * MB)
    assert storage.now_s <= storage.size_bytes / (1000 * MB) + first_s + block_s + 0.1


def test_a_disk_that_writes_slower_than_the_volume_reads_is_not_used() -> None:
    storage = Storage(single=500, disk=lambda _: 80)
    with pytest.raises(Slower, match=r"landing would take 4\d\.\d s more, reading in place 8\.6 s"):
        storage.drive()
    assert storage.tally.moved_bytes <= 3 * PROBE


def test_a_disk_that_becomes_slow_on_the_way_ends_the_copy() -> None:
    storage = Storage(size_bytes=20 * GIB, disk=lambda at: 4000 if at < 2 * GIB else 60)
    with pytest.raises(Slower):
        storage.drive()
    assert storage.tally.moved_bytes < 3 * GIB


def test_near_its_end_a_copy_is_finished_even_on_a_slow_disk() -> None:
    size = 20 * GIB
    storage = Storage(size_bytes=size, disk=lambda at: 4000 if at < size * 0.95 else 100)
    assert storage.drive() == FAR
    assert storage.left_bytes == 0


def test_storage_that_becomes_slow_is_no_reason_to_give_up_for_in_place_it_is_as_slow() -> None:
    storage = Storage(size_bytes=8 * GIB)
    before = storage.rate

    def rate(method: Method) -> float:
        return before(method) if storage.tally.moved_bytes < GIB else 30.0

    storage.rate = rate  # type: ignore[method-assign]
    assert storage.drive() == FAR
    assert storage.now_s > 5 * WINDOW_S


def test_what_the_page_cache_cannot_keep_counts_against_the_copy() -> None:
    assert Storage(direct=500, single=400).drive() == FAR
    with pytest.raises(Slower):
        Storage(direct=500, single=400).drive(reread_bytes=4 * GIB)
    assert Storage(direct=2000, single=200).drive(reread_bytes=4 * GIB) == FAR


def test_blocks_from_the_page_cache_do_not_make_storage_look_fast() -> None:
    storage = Storage(direct=1000, single=100, cached_share=0.3)
    assert storage.drive() == FAR
    cached = -(-int(0.3 * storage.size_bytes) // PROBE)
    assert storage.used == [FAR] * (cached + 2)
    assert storage.glimpses == 1


def test_a_file_without_a_cold_part_is_copied_without_a_choice() -> None:
    storage = Storage(cached_share=1.0, many=5000, single=10)
    assert storage.drive() == FAR
    assert set(storage.used) == {FAR}


def test_a_file_that_is_largely_cached_is_worth_less_copying() -> None:
    with pytest.raises(Slower):
        Storage(direct=150, single=400, many=10, cached_share=0.1, disk=lambda _: 150).drive()


speeds = st.floats(5, 5000)


@given(
    direct=speeds,
    single=speeds,
    many=speeds,
    disk=speeds,
    has=st.tuples(st.booleans(), st.booleans()),
    gib=st.integers(1, 40),
)
def test_nothing_is_ever_slower_than_doing_nothing_by_more_than_the_probes(
    direct: float,
    single: float,
    many: float,
    disk: float,
    has: tuple[bool, bool],
    gib: int,
) -> None:
    has_direct, known = has
    storage = Storage(direct, single, many, lambda _: disk, gib * GIB)
    first_rate = min(direct, disk) if has_direct else 1 / (1 / single + 1 / disk)
    slowest_block_s = BLOCK_BYTES / (min(direct, single, many, disk) * MB) * 2
    probes_s = 3 * (PROBE / (first_rate * MB) + slowest_block_s)
    try:
        storage.drive(direct=has_direct, known=known)
        after_s = 0.0
    except Slower:
        after_s = storage.nothing_s
    assert storage.now_s + after_s <= storage.nothing_s * MARGIN + probes_s + WINDOW_S
