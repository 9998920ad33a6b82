"""Memory that is held until something else takes it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import pytest

from bench import held_memory
from bench.held_memory import AHEAD_BYTES, free_bytes, held

SIZE = 512 << 20
STEP = 32 << 20


def held_bytes() -> int:
    """What the process that holds memory for this one has not let go of yet."""
    [holder] = [child for child in psutil.Process().children() if "bench.held_memory" in child.cmdline()]
    found = 0
    for link in Path(f"/proc/{holder.pid}/fd").iterdir():
        # It looks at free memory all the time, through a file that is open for a moment.
        with contextlib.suppress(FileNotFoundError):
            if str(link.readlink()).endswith(" (deleted)"):
                found = max(found, link.stat().st_size)
    return found


def test_what_is_held_is_let_go_of_as_memory_is_taken(tmp_path: Path) -> None:
    if free_bytes() < 8 * SIZE:
        pytest.skip("too little free memory to tell")
    with held(SIZE, tmp_path):
        taken = []
        until_s = time.monotonic() + 60
        # Others give memory back meanwhile, which is taken first.
        while held_bytes() > SIZE // 2:
            assert time.monotonic() < until_s
            if len(taken) < 6 * SIZE // STEP:
                taken.append(b"x" * STEP)
            time.sleep(0.05)
    if not taken:
        pytest.skip("others took it first")


def test_nothing_is_left_when_the_context_ends(tmp_path: Path) -> None:
    with held(AHEAD_BYTES, tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_room_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended before it was ready"), held(AHEAD_BYTES, tmp_path / "absent"):
        pytest.fail("nothing is held")


def test_free_memory_is_what_the_kernel_says() -> None:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    total_bytes = int(text.split()[1]) * 1024
    assert 0 < free_bytes() < total_bytes
    assert held_memory.STEP_BYTES < AHEAD_BYTES
