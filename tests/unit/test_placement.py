"""Where a model file is to be read from: every reason to land it, and every reason not to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.placement import CACHED_ENOUGH, ROOM_FACTOR, ModelFile, Plan, plan
from worker.storage import Place

GB = 10**9
VOLUME = Path("/runpod-volume/model.gguf")
DISK, MEMORY = Path("/landed"), Path("/memory")


def model(filesystem: str = "fuse", size_gb: float = 10, cached_share: float = 0.0) -> ModelFile:
    return ModelFile(Place(VOLUME, filesystem, 0), int(size_gb * GB), cached_share)


def disk(free_gb: float = 100) -> Place:
    return Place(DISK, "overlay", int(free_gb * GB))


def memory(free_gb: float = 100) -> Place:
    return Place(MEMORY, "tmpfs", int(free_gb * GB))


def test_a_distant_file_lands_on_local_disk() -> None:
    chosen = plan(model(), [disk()], 100 * GB)
    assert chosen == Plan(DISK, "fuse is distant, /landed has room", cached_share=0.0)
    assert chosen.land


@pytest.mark.parametrize("filesystem", ["ext4", "xfs", "overlay", "btrfs", "zfs", "tmpfs", "fuseblk", "unknown"])
def test_a_local_file_stays(filesystem: str) -> None:
    chosen = plan(model(filesystem), [disk()], 100 * GB)
    assert chosen == Plan(None, f"{filesystem} is local")
    assert not chosen.land


@pytest.mark.parametrize("filesystem", ["fuse", "fuse.juicefs", "nfs", "nfs4", "virtiofs", "9p", "ceph", "lustre"])
def test_what_comes_over_a_network_or_through_a_daemon_lands(filesystem: str) -> None:
    assert plan(model(filesystem), [disk()], None).land


def test_a_file_in_the_page_cache_stays_and_one_that_is_mostly_there_too() -> None:
    assert plan(model(cached_share=1.0), [disk()], None).reason == "100% of it is in the page cache already"
    assert not plan(model(cached_share=CACHED_ENOUGH), [disk()], None).land
    assert plan(model(cached_share=CACHED_ENOUGH - 0.01), [disk()], None).land


def test_disk_comes_before_memory_in_whatever_order_they_are_offered() -> None:
    assert plan(model(), [memory(), disk()], 100 * GB).target == DISK
    assert plan(model(), [disk(free_gb=1), memory()], 100 * GB).target == MEMORY


def test_the_first_disk_offered_is_taken() -> None:
    second = Place(Path("/second"), "ext4", 100 * GB)
    assert plan(model(), [second, disk()], None).target == second.path


def test_a_disk_needs_room_for_the_file_and_a_tenth_more() -> None:
    assert not plan(model(), [disk(free_gb=11)], None).land
    assert plan(model(), [disk(free_gb=11.1)], None).land
    reason = plan(model(), [disk(free_gb=5)], None).reason
    assert reason == "fuse is distant, but /landed has 5.0 GB free of 11.0 GB needed"


def test_memory_needs_room_below_the_limit_of_the_container_as_well() -> None:
    assert plan(model(), [memory()], 12 * GB).target == MEMORY
    refused = plan(model(), [memory()], 11 * GB)
    assert refused.reason == ("fuse is distant, but /memory is memory, with 11.0 GB left below the container's limit")
    assert not plan(model(), [memory(free_gb=11)], 100 * GB).land


def test_memory_is_not_filled_on_hope() -> None:
    assert "how much is left cannot be told" in plan(model(), [memory()], None).reason


def test_a_distant_folder_is_no_place_to_land() -> None:
    far = Place(Path("/far"), "nfs4", 100 * GB)
    assert plan(model(), [far], None).reason == "fuse is distant, but /far is distant as well (nfs4)"


def test_every_folder_that_was_refused_is_named() -> None:
    reason = plan(model(), [memory(), disk(free_gb=1)], 1 * GB).reason
    assert "/landed has 1.0 GB" in reason
    assert "/memory is memory" in reason
    assert plan(model(), [], None).reason == "fuse is distant, but no folder was offered"


def test_what_the_page_cache_cannot_keep_is_counted() -> None:
    assert plan(model(), [disk()], 100 * GB).reread_bytes == 0
    assert plan(model(), [disk()], 4 * GB).reread_bytes == 6 * GB
    assert plan(model(), [disk()], None).reread_bytes == 0


def test_the_share_that_was_found_is_handed_on() -> None:
    assert plan(model(cached_share=0.25), [disk()], None).cached_share == 0.25


sizes = st.integers(0, 10**12)


@given(size=sizes, disk_free=sizes, memory_free=sizes, headroom=st.none() | sizes, cached=st.floats(0, 1))
def test_nothing_is_ever_landed_where_it_does_not_fit(
    size: int, disk_free: int, memory_free: int, headroom: int | None, cached: float
) -> None:
    file = ModelFile(Place(VOLUME, "fuse", 0), size, cached)
    chosen = plan(file, [Place(DISK, "ext4", disk_free), Place(MEMORY, "tmpfs", memory_free)], headroom)
    needed = int(size * ROOM_FACTOR)
    assert chosen.reason
    assert chosen.target != DISK or disk_free > needed
    assert chosen.target != MEMORY or (memory_free > needed and headroom is not None and headroom > needed)
    assert 0 <= chosen.reread_bytes <= size
