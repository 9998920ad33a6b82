from __future__ import annotations

import json
from typing import Any

import pytest

from worker.adapter import result
from worker.adapter.result import RESULT_BYTES, within_limit


def post(*outputs: Any) -> str:
    """Return the last post of a job as the SDK makes it."""
    return json.dumps({"output": list(outputs)}, ensure_ascii=False)


def filled(size_bytes: int, character: str = "x") -> str:
    """Return a post of exactly so many bytes."""
    room = size_bytes - len(post("a", "").encode())
    return post("a", character * (room // len(character.encode())))


def test_what_fits_is_sent_as_it_is() -> None:
    for text in (post("a"), '{"error": "x"}', filled(RESULT_BYTES), filled(RESULT_BYTES // 4)):
        assert within_limit(text) is text


@pytest.mark.parametrize("character", ["x", "é", "🦙"])
def test_the_limit_counts_bytes(character: str) -> None:
    room = 4 * (RESULT_BYTES // 4)
    assert within_limit(filled(room, character)) == filled(room, character)
    assert len(within_limit(filled(room + 8, character))) < 500


def test_the_gathering_of_a_stream_is_replaced_by_a_marker() -> None:
    made = json.loads(within_limit(post(*["x" * 1_000_000] * 21)))
    (marker,) = made["output"]
    assert marker["omitted"] == (
        "the answer has 21,000,096 bytes, more than the 19,900,000 of a result; its 21 chunks were all sent to /stream"
    )
    assert "error" not in made


@pytest.mark.parametrize("answer", [{"embeddings": "x" * RESULT_BYTES}, "x" * RESULT_BYTES])
def test_an_answer_that_was_not_streamed_is_a_failure(answer: Any) -> None:
    made = json.loads(within_limit(post(answer)))
    assert list(made) == ["error"]
    assert made["error"].endswith("of a result. Ask for less, or stream it")


def test_what_takes_its_place_fits() -> None:
    assert len(within_limit(post(*["x"] * 5_000_000))) < 500


def test_the_limit_is_below_the_platforms() -> None:
    assert 19_000_000 < result.RESULT_BYTES < 20_000_000
