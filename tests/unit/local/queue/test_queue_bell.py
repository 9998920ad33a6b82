from __future__ import annotations

import asyncio
import time

from worker.local.queue.bell import Bell


async def test_a_ring_wakes_everybody_who_waits() -> None:
    bell = Bell()
    woken: list[int] = []

    async def sleeper(number: int) -> None:
        await bell.wait(60)
        woken.append(number)

    sleepers = [asyncio.ensure_future(sleeper(number)) for number in range(3)]
    await asyncio.sleep(0)
    bell.ring()
    await asyncio.wait_for(asyncio.gather(*sleepers), 30)
    assert sorted(woken) == [0, 1, 2]


async def test_a_ring_is_not_kept_for_later() -> None:
    bell = Bell()
    bell.ring()
    begin_s = time.monotonic()
    await bell.wait(0.1)
    assert time.monotonic() - begin_s >= 0.09


async def test_two_rings_in_a_row_and_a_ring_after_a_timeout_do_no_harm() -> None:
    bell = Bell()
    waiting = asyncio.ensure_future(bell.wait(60))
    await asyncio.sleep(0)
    bell.ring()
    bell.ring()
    await asyncio.wait_for(waiting, 30)
    await bell.wait(0)
    await bell.wait(-1)
    bell.ring()


async def test_a_cancelled_wait_leaves_nobody_behind() -> None:
    bell = Bell()
    waiting = asyncio.ensure_future(bell.wait(60))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert bell._waiting == set()
