"""Memory that is held until something else takes it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench import held_memory
from bench.held_memory import AHEAD_BYTES, free_bytes, held

SIZE = 512 << 20


def test_what_is_held_is_let_go_of_as_memory_is_taken(tmp_path: Path) -> None:
    if free_bytes() < 4 * SIZE:
        pytest.skip("too little free memory to tell")
    with held(SIZE, tmp_path):
        before_bytes = free_bytes()
        taken = bytearray(SIZE)
        for at in range(0, SIZE, 4096):
            taken[at] = 1
        until_s = time.monotonic() + 20
        # Others take and give memory meanwhile: half of it is evidence enough.
        while free_bytes() < before_bytes - SIZE // 2:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        del taken


def test_nothing_is_left_when_the_context_ends(tmp_path: Path) -> None:
    with held(AHEAD_BYTES, tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_room_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no memory could be held"), held(AHEAD_BYTES, tmp_path / "absent"):
        pytest.fail("nothing is held")


def test_free_memory_is_what_the_kernel_says() -> None:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    total_bytes = int(text.split()[1]) * 1024
    assert 0 < free_bytes() < total_bytes
    assert held_memory.STEP_BYTES < AHEAD_BYTES
