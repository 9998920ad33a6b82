from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import chunks
from worker.routes import Framing

STAMP = {"model": "m", "created_at": "2026-01-01T00:00:00Z"}
CALL = {"function": {"name": "f", "arguments": {"x": 1}}}
PROPERTY = settings(deadline=None, database=None, max_examples=150)


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def chat(content: str, **message: Any) -> str:
    return dumps({**STAMP, "message": {"role": "assistant", "content": content, **message}, "done": False})


def generated(text: str, **more: Any) -> str:
    return dumps({**STAMP, "response": text, **more, "done": False})


def joined(*frames: str) -> list[str]:
    return chunks.join(frames, Framing.NDJSON)


def message(chunk: str) -> Any:
    return json.loads(chunk)["message"]


def posted_bytes(chunk: str) -> int:
    return len(json.dumps({"output": chunk}, ensure_ascii=False).encode())


FINAL = dumps({**STAMP, "message": {"role": "assistant", "content": ""}, "done": True, "eval_count": 3})


def test_neighbours_become_one_object() -> None:
    assert [message(chunk) for chunk in joined(chat("Hel"), chat("lo"), chat(" 🦙"))] == [
        {"role": "assistant", "content": "Hello 🦙"}
    ]
    (chunk,) = joined(generated("Hel"), generated("lo"))
    assert json.loads(chunk) == {**STAMP, "response": "Hello", "done": False}


def test_a_single_frame_keeps_its_content() -> None:
    assert [json.loads(chunk) for chunk in joined(chat("x", thinking="y"))] == [json.loads(chat("x", thinking="y"))]
    assert joined() == []


def test_the_time_is_that_of_the_last() -> None:
    later = chat("b").replace("00:00:00Z", "00:00:09Z")
    (chunk,) = joined(chat("a"), later)
    assert json.loads(chunk)["created_at"] == "2026-01-01T00:00:09Z"


def test_thinking_and_content_stay_apart() -> None:
    (chunk,) = joined(chat("", thinking="hm"), chat("", thinking="m"), chat("so"), chat("!"))
    assert message(chunk) == {"role": "assistant", "content": "so!", "thinking": "hmm"}
    (chunk,) = joined(generated("", thinking="a"), generated("b"), generated("", thinking="c"))
    assert json.loads(chunk) == {**STAMP, "response": "b", "thinking": "ac", "done": False}


@pytest.mark.parametrize(
    "frame",
    [
        FINAL,
        chat("", tool_calls=[CALL]),
        chat("x", images=["aGk="]),
        dumps({**STAMP, "response": "", "tool_calls": [CALL], "done": False}),
        dumps({**STAMP, "response": "x", "logprobs": [{"token": "x", "logprob": -1}], "done": False}),
        dumps({**STAMP, "response": "x", "_debug_info": {}, "done": False}),
        dumps({**STAMP, "response": "x", "of_next_year": 1, "done": False}),
        dumps({"error": "it broke", "done": False, "response": ""}),
        dumps({"status": "pulling", "completed": 1, "total": 9}),
        dumps({**STAMP, "response": "x"}),
        dumps({**STAMP, "response": None, "done": False}),
        dumps({**STAMP, "message": {"role": "assistant"}, "done": False}),
        dumps({**STAMP, "message": "x", "done": False}),
        dumps({**STAMP, "message": {"content": ["x"]}, "done": False}),
        '[{"response":"x","done":false}]',
        "null",
        "not JSON {",
        '{"done": fal',
    ],
)
def test_what_is_more_than_text_passes_as_it_is_and_in_its_place(frame: str) -> None:
    before, same, _, after = joined(chat("a"), chat("b"), frame, frame, chat("c"), chat("d"))
    assert same == frame
    assert [message(before)["content"], message(after)["content"]] == ["ab", "cd"]


def test_a_chat_and_a_prompts_answer_are_not_mixed() -> None:
    assert len(joined(chat("a"), generated("b"), chat("c"))) == 3


def test_server_sent_events_are_glued() -> None:
    events = ['data: {"a":"é"}\n\n', "data: x\n\n", "data: [DONE]\n\n"]
    assert chunks.join(events, Framing.SSE) == ["".join(events)]
    assert chunks.join([], Framing.SSE) == []
    # Errors and finals inside an event are the client's to read; nothing is taken apart.
    assert chunks.join([f"data: {FINAL}\n\n"] * 2, Framing.SSE) == [f"data: {FINAL}\n\n" * 2]


@pytest.mark.parametrize(
    ("frame", "framing", "content"),
    [
        # Much of an event is quotes, and the platform's JSON escapes each of them.
        (f"data: {dumps({'choices': [{'index': 0, 'delta': {'content': chr(34)}}]})}\n\n", Framing.SSE, str),
        (chat('"\\\n\t'), Framing.NDJSON, lambda chunk: message(chunk)["content"]),
        (chat("語" * 20), Framing.NDJSON, lambda chunk: message(chunk)["content"]),
    ],
)
def test_a_chunk_is_no_larger_than_the_platform_takes(
    frame: str, framing: Framing, content: Callable[[str], str]
) -> None:
    frames = [frame] * (2_000_000 // len(frame.encode()))
    made = chunks.join(frames, framing)
    assert max(map(posted_bytes, made)) <= 1_000_000
    # And not much smaller: each is a post.
    assert len(made) <= sum(map(posted_bytes, frames)) // chunks.CHUNK_BYTES + 1
    assert "".join(map(content, made)) == "".join(map(content, frames))


@pytest.mark.parametrize("character", ["x", '"', "\x01", "語", "👩"])
def test_a_text_too_long_for_a_chunk_is_several_objects(character: str) -> None:
    text = character * (1_200_000 // len(character.encode()))
    made = joined(chat("a"), chat(text, thinking=text[:9]), chat("b"))
    assert max(map(posted_bytes, made)) <= 1_000_000
    assert "".join(message(chunk)["content"] for chunk in made) == f"a{text}b"
    assert "".join(message(chunk).get("thinking", "") for chunk in made) == text[:9]
    (whole,) = {chunk["model"] for chunk in map(json.loads, made)}
    assert whole == json.loads(chat("a"))["model"]
    assert max(map(posted_bytes, joined(generated(text)))) <= 1_000_000
    assert "".join(json.loads(chunk)["response"] for chunk in joined(generated(text))) == text


def test_an_event_too_long_for_a_chunk_is_cut_as_text() -> None:
    event = f"data: {chat(chr(34) * chunks.CHUNK_BYTES)}\n\n"
    made = chunks.join(["data: a\n\n", event, "data: b\n\n"], Framing.SSE)
    assert max(map(posted_bytes, made)) <= 1_000_000
    assert "".join(made) == f"data: a\n\n{event}data: b\n\n"


def test_the_last_object_gives_up_its_token_numbers_before_it_is_too_long() -> None:
    last = {**STAMP, "response": "", "done": True, "eval_count": 7, "context": list(range(200_000))}
    before, made, after = joined(generated("a"), dumps(last), generated("b"))
    assert json.loads(made) == {**STAMP, "response": "", "done": True, "eval_count": 7} | {
        "context_omitted": "too long for one chunk"
    }
    assert [json.loads(chunk)["response"] for chunk in (before, after)] == ["a", "b"]
    short = dumps(last | {"context": [1, 2]})
    assert joined(short) == [short]


@pytest.mark.parametrize("frame", ["x" * 1_200_000, dumps({"message": {"tool_calls": ["x" * 1_200_000]}})])
def test_what_cannot_be_divided_is_left_to_the_platform(frame: str) -> None:
    assert joined(chat("a"), frame, chat("b"))[1] == frame


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
DELTAS = (
    st.builds(chat, TEXT)
    | st.builds(chat, TEXT, thinking=TEXT)
    | st.builds(generated, TEXT)
    | st.builds(generated, TEXT, thinking=TEXT)
)
OTHERS = st.just(FINAL) | st.builds(lambda text: chat(text, tool_calls=[CALL]), TEXT) | st.sampled_from(["", "{", "[]"])


def transcript(parts: Sequence[str]) -> list[Any]:
    """Return what a reader of `parts` sees: runs of text by kind, and everything else as it is, in order."""
    seen: list[Any] = []
    for kind, text, thinking in map(read, parts):
        if kind in {"message", "response"} and seen and seen[-1][0] == kind:
            seen[-1] = (kind, seen[-1][1] + text, seen[-1][2] + thinking)
        else:
            seen.append((kind, text, thinking))
    return seen


def read(part: str) -> tuple[str, str, str]:
    try:
        value = json.loads(part)
    except ValueError:
        return part, "", ""
    if not isinstance(value, dict) or value["done"] or "tool_calls" in value.get("message", {}):
        return part, "", ""
    if "message" in value:
        return "message", value["message"]["content"], value["message"].get("thinking", "")
    return "response", value["response"], value.get("thinking", "")


@PROPERTY
@given(frames=st.lists(DELTAS | DELTAS | OTHERS, max_size=20), limit=st.sampled_from([150, 400, 900_000]))
def test_joining_loses_nothing_and_keeps_the_order(frames: list[str], limit: int) -> None:
    with mock.patch.object(chunks, "CHUNK_BYTES", limit):
        made = joined(*frames)
    assert transcript(made) == transcript(frames)
    assert [part for part in made if part in {FINAL, "", "{", "[]"}] == [
        part for part in frames if part in {FINAL, "", "{", "[]"}
    ]
    sizes = [posted_bytes(part) for part in made]
    largest = max(map(posted_bytes, frames), default=0)
    assert all(size <= max(limit + len('{"output": }'), largest) for size in sizes)
    if limit == 900_000:
        alike = {left for left, right in pairwise(kind for kind, _, _ in map(read, made)) if left == right}
        assert not alike & {"message", "response"}, "neighbours were not joined"


@PROPERTY
@given(
    # No frame is larger than the lowest limit.
    frames=st.lists(st.builds("data: {}\n\n".format, TEXT), max_size=20),
    limit=st.sampled_from([70, 120, 900_000]),
)
def test_glued_events_are_the_same_stream(frames: list[str], limit: int) -> None:
    with mock.patch.object(chunks, "CHUNK_BYTES", limit):
        made = chunks.join(frames, Framing.SSE)
    assert "".join(made) == "".join(frames)
    assert len(made) <= len(frames)
    left = list(frames)
    for chunk in made:
        glued = ""
        while len(glued) < len(chunk):
            glued += left.pop(0)
        assert glued == chunk, "a frame was cut"


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)


@PROPERTY
@given(value=JSON)
def test_what_was_parsed_can_be_sent_again(value: Any) -> None:
    parsed = chunks.parse(json.dumps(value))
    again = json.dumps(parsed, ensure_ascii=False, allow_nan=False)
    assert json.loads(again.encode()) == parsed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83e\udd99"', "🦙"),
        (r'"a\ud83eb"', "a\ufffdb"),
        (r'{"\udd99": ["\ud83e"]}', {"\ufffd": ["\ufffd"]}),
        ("[NaN, Infinity, -Infinity, 1e999, -1e999]", [None] * 5),
        ("1e308", 1e308),
        ("[true, null, 1, 1.5]", [True, None, 1, 1.5]),
    ],
)
def test_what_cannot_be_sent_is_replaced(text: str, value: Any) -> None:
    assert chunks.parse(text) == value


@pytest.mark.parametrize("text", ["", "{", "data: {}", "1 2", "'a'"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra"):
        chunks.parse(text)


# --- The short way for plain frames must not differ from the long one


@PROPERTY
@given(frames=st.lists(DELTAS | DELTAS | OTHERS, max_size=12), ascii_only=st.booleans())
def test_plain_frames_are_joined_as_parsed_ones_are(frames: list[str], *, ascii_only: bool) -> None:
    compact = [_compact(frame, ascii_only=ascii_only) for frame in frames]
    quick = chunks.join(compact, Framing.NDJSON)
    with mock.patch.object(chunks, "_collapsed", list):
        thorough = chunks.join(compact, Framing.NDJSON)
    assert list(map(_loaded, quick)) == list(map(_loaded, thorough))


def _compact(frame: str, *, ascii_only: bool) -> str:
    """Write a frame as the server does, or with every character beyond ASCII escaped."""
    try:
        return json.dumps(json.loads(frame), ensure_ascii=ascii_only, separators=(",", ":"))
    except ValueError:
        return frame


def _loaded(chunk: str) -> Any:
    try:
        return json.loads(chunk)
    except ValueError:
        return chunk


@pytest.mark.parametrize("text", ["a", "", r"\u003ca\u003e \"b\" \\ \n", "é🦙", r"\\u0041", r"\\ud83e"])
@pytest.mark.parametrize("make", ['"message":{{"role":"assistant","content":"{}"}}', '"response":"{}"'])
def test_the_servers_own_writing_takes_the_short_way(make: str, text: str) -> None:
    frame = f'{{"model":"m","created_at":"2026-01-01T00:00:00Z",{make},"done":false}}'.replace(make, make.format(text))
    with mock.patch.object(chunks, "parse", side_effect=AssertionError("it was parsed")):
        (made,) = joined(*[frame] * 5)
    assert made == frame.replace(make.format(text), make.format(text * 5))


@pytest.mark.parametrize(
    "frame",
    [
        '{"model":"m","created_at":"t","response":"\\ud83e","done":false}',
        '{"model":"m","created_at":"t","response":"a"b","done":false}',
        '{"model":"m","created_at":"t","response":"a\\","done":false}',
        '{"model":"m","created_at":"t","response":"\\q","done":false}',
        '{"model":"m","created_at":"t","response":"\x01","done":false}',
        '{"model":"m","created_at":"t","response":"\ud83e","done":false}',
        '{"model":"m","created_at":"t","response":"a","done":true}',
        '{"model":"m","created_at":"t","response":"a","thinking":"b","done":false}',
    ],
)
def test_what_is_not_surely_plain_is_parsed(frame: str) -> None:
    with mock.patch.object(chunks, "parse", wraps=chunks.parse) as parse:
        made = joined(frame)
    assert parse.call_count == 1
    assert "".join(made).encode("utf-8", "replace")


def test_halves_of_a_character_in_two_frames_become_text_that_can_be_sent() -> None:
    halves = [f'{{"model":"m","created_at":"t","response":"{half}","done":false}}' for half in (r"\ud83e", r"\udd99")]
    (made,) = joined(*halves)
    assert made.encode()
