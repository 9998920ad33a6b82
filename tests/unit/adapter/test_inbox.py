from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.adapter.inbox import LIMIT_CHARS, Inbox

LIMIT_S = 30.0


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def soon(work: Any) -> Any:
    return await asyncio.wait_for(work, LIMIT_S)


async def test_what_is_there_is_taken_at_once_and_in_order() -> None:
    inbox = Inbox()
    for frame in ("a", "b", "c"):
        await soon(inbox.put(frame))
    assert await soon(inbox.take()) == ["a", "b", "c"]


async def test_the_first_frame_can_be_taken_alone() -> None:
    inbox = Inbox()
    await inbox.put("a")
    await inbox.put("b")
    assert await soon(inbox.take(one=True)) == ["a"]
    assert await soon(inbox.take(one=True)) == ["b"]
    inbox.close()
    assert await soon(inbox.take(one=True)) == []


@pytest.mark.parametrize("one", [False, True])
async def test_a_reader_waits_for_the_next_frame(*, one: bool) -> None:
    inbox = Inbox()
    reader = asyncio.create_task(inbox.take(one=one))
    await settled()
    assert not reader.done()
    await inbox.put("a")
    assert await soon(reader) == ["a"]


async def test_the_end_comes_after_what_was_put() -> None:
    inbox = Inbox()
    await inbox.put("a")
    inbox.close()
    assert await soon(inbox.take()) == ["a"]
    assert await soon(inbox.take()) == []
    assert await soon(inbox.take()) == []


async def test_a_waiting_reader_learns_of_the_end() -> None:
    inbox = Inbox()
    reader = asyncio.create_task(inbox.take())
    await settled()
    inbox.close()
    assert await soon(reader) == []


async def test_the_end_of_the_writing_task_is_the_end() -> None:
    inbox = Inbox()

    async def write() -> None:
        await inbox.put("a")
        raise ValueError("the server went away")

    writer = asyncio.create_task(write())
    writer.add_done_callback(inbox.close)
    assert await soon(inbox.take()) == ["a"]
    assert await soon(inbox.take()) == []
    with pytest.raises(ValueError, match="went away"):
        await writer


async def test_a_writer_waits_while_the_buffer_is_full() -> None:
    inbox = Inbox(limit_chars=4)
    await soon(inbox.put("ab"))
    await soon(inbox.put("cdef"))
    writer = asyncio.create_task(inbox.put("g"))
    await settled()
    assert not writer.done()
    # Six characters were there: one frame less is still too many for a limit of four.
    assert await soon(inbox.take(one=True)) == ["ab"]
    await settled()
    assert not writer.done()
    assert await soon(inbox.take(one=True)) == ["cdef"]
    await soon(writer)
    assert await soon(inbox.take()) == ["g"]


async def test_a_frame_larger_than_the_limit_is_not_stuck() -> None:
    inbox = Inbox(limit_chars=1)
    await soon(inbox.put("x" * 100))
    assert await soon(inbox.take()) == ["x" * 100]
    await soon(inbox.put("y"))
    assert await soon(inbox.take()) == ["y"]


async def test_a_writer_that_is_stopped_puts_nothing() -> None:
    inbox = Inbox(limit_chars=1)
    await inbox.put("a")
    writer = asyncio.create_task(inbox.put("b"))
    await settled()
    writer.cancel()
    await asyncio.wait([writer])
    inbox.close()
    assert await soon(inbox.take()) == ["a"]
    assert await soon(inbox.take()) == []


async def test_a_reader_that_is_stopped_takes_nothing() -> None:
    inbox = Inbox()
    reader = asyncio.create_task(inbox.take())
    await settled()
    reader.cancel()
    await asyncio.wait([reader])
    await inbox.put("a")
    assert await soon(inbox.take()) == ["a"]


def test_a_job_holds_megabytes_not_gigabytes() -> None:
    assert 100_000 <= LIMIT_CHARS <= 10_000_000


@settings(deadline=None, database=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 9), max_size=30),
    pauses=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    limit=st.integers(1, 20),
)
def test_every_frame_arrives_once_whatever_the_pace(sizes: list[int], pauses: list[int], limit: int) -> None:
    frames = [chr(97 + number % 26) * size for number, size in enumerate(sizes)]
    waiting: list[int] = []

    async def write(inbox: Inbox) -> None:
        for number, frame in enumerate(frames):
            await inbox.put(frame)
            for _ in range(pauses[number % len(pauses)]):
                await asyncio.sleep(0)

    async def play() -> list[list[str]]:
        inbox = Inbox(limit_chars=limit)
        writer = asyncio.create_task(write(inbox))
        writer.add_done_callback(inbox.close)
        batches = [await inbox.take(one=True)]
        while batches[-1]:
            for _ in range(pauses[len(batches) % len(pauses)]):
                await asyncio.sleep(0)
            batches.append(await inbox.take())
            waiting.append(sum(map(len, batches[-1])))
        return batches

    batches = asyncio.run(asyncio.wait_for(play(), LIMIT_S))
    assert [frame for batch in batches for frame in batch] == frames
    assert len(batches[0]) == min(1, len(frames))
    # One frame may go over the limit, never two.
    assert all(size < limit + 9 for size in waiting)
