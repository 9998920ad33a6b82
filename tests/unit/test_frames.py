from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.frames import FrameCutter
from worker.routes import Framing

MIXED = "Grüße 🦙 東京 👩‍🚀"
PROPERTY = settings(deadline=None, database=None, max_examples=150)


def cut(framing: Framing, parts: Iterable[bytes]) -> tuple[list[str], str | None]:
    """Return the frames of a stream that arrives in `parts`, and what is left at its end."""
    cutter = FrameCutter(framing)
    frames = [frame for part in parts for frame in cutter.feed(part)]
    return frames, cutter.close()


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    borders = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(borders)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)
# A line of text as a server sends it: no line break of its own, and not only space.
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=20)
BORDER = st.sampled_from(["\n\n", "\r\n\r\n"])


@PROPERTY
@given(texts=st.lists(LINE), cuts=CUTS)
def test_lines_arrive_whole_however_they_were_split(texts: list[str], cuts: list[int]) -> None:
    lines = [json.dumps({"t": text}, ensure_ascii=False) for text in texts]
    data = "".join(f"{line}\n" for line in lines).encode()
    assert cut(Framing.NDJSON, split(data, cuts)) == (lines, None)


@PROPERTY
@given(texts=st.lists(st.tuples(LINE, BORDER)), cuts=CUTS)
def test_server_sent_events_arrive_whole_with_their_border(texts: list[tuple[str, str]], cuts: list[int]) -> None:
    sent = [f"event: x\ndata: {text}{border}" for text, border in texts]
    frames, rest = cut(Framing.SSE, split("".join(sent).encode(), cuts))
    assert (frames, rest) == (sent, None)


@PROPERTY
@given(texts=st.lists(LINE), cuts=CUTS)
def test_a_json_answer_is_one_frame_at_the_end(texts: list[str], cuts: list[int]) -> None:
    text = json.dumps(texts, ensure_ascii=False, indent=1)
    assert cut(Framing.JSON, split(text.encode(), cuts)) == ([], text)


@PROPERTY
@given(
    data=st.lists(st.sampled_from([b"\n", b"\r", b" ", b"a", "語".encode(), b"\xf0\x9f", b"\xff"]), max_size=30),
    cuts=CUTS,
    framing=st.sampled_from(list(Framing)),
)
def test_where_the_network_splits_makes_no_difference(data: list[bytes], cuts: list[int], framing: Framing) -> None:
    whole = b"".join(data)
    once = cut(framing, [whole])
    assert cut(framing, split(whole, cuts)) == once
    assert cut(framing, [whole[at : at + 1] for at in range(len(whole))]) == once


@PROPERTY
@given(data=st.binary(max_size=60), framing=st.sampled_from(list(Framing)))
def test_nothing_but_space_is_lost(data: bytes, framing: Framing) -> None:
    frames, rest = cut(framing, [data])
    kept = "".join([*frames, rest or ""])
    assert "".join(kept.split()) == "".join(data.decode("utf-8", errors="replace").split())
    assert all(frame.strip() for frame in frames)
    assert rest is None or rest.strip()


@pytest.mark.parametrize("at", range(len(MIXED.encode()) + 1))
@pytest.mark.parametrize(("framing", "border"), [(Framing.NDJSON, "\n"), (Framing.SSE, "\n\n"), (Framing.JSON, "")])
def test_no_character_is_split(framing: Framing, border: str, at: int) -> None:
    data = f"{MIXED}{border}".encode()
    frames, rest = cut(framing, [data[:at], data[at:]])
    assert "".join([*frames, rest or ""]).rstrip("\n") == MIXED


@pytest.mark.parametrize("border", ["\n\n", "\r\n\r\n"])
def test_an_event_is_given_as_soon_as_its_border_is_there(border: str) -> None:
    cutter = FrameCutter(Framing.SSE)
    data = f"data: 1{border}"
    for byte in data[:-1].encode():
        assert cutter.feed(bytes([byte])) == []
    assert cutter.feed(data[-1:].encode()) == [data]
    assert cutter.close() is None


def test_a_line_is_given_as_soon_as_it_ends() -> None:
    cutter = FrameCutter(Framing.NDJSON)
    assert cutter.feed(b'{"a":') == []
    assert cutter.feed(b'1}\n{"b":2}\n{"c"') == ['{"a":1}', '{"b":2}']
    assert cutter.feed(b":3}") == []
    assert cutter.close() == '{"c":3}'


@pytest.mark.parametrize("framing", list(Framing))
def test_blank_parts_are_no_frames(framing: Framing) -> None:
    assert cut(framing, [b"\n", b"\n\n", b" \n \n\n", b"\r\n\r\n"]) == ([], None)


@pytest.mark.parametrize(
    ("framing", "parts", "frames"),
    [
        (Framing.NDJSON, [b"a\n\nb\n"], ["a", "b"]),
        (Framing.NDJSON, [b"\na\n"], ["a"]),
        (Framing.SSE, [b"\n\ndata: a\n\n\n\ndata: b\n\n"], ["data: a\n\n", "data: b\n\n"]),
        (Framing.SSE, [b"\n", b"\n", b"data: a\n\n"], ["data: a\n\n"]),
        (Framing.SSE, [b"\r", b"\n\r\n", b"data: a\n\n"], ["data: a\n\n"]),
    ],
)
def test_blank_parts_do_not_stick_to_what_follows(framing: Framing, parts: list[bytes], frames: list[str]) -> None:
    assert cut(framing, parts) == (frames, None)


def test_an_event_of_several_lines_is_one_frame() -> None:
    event = 'event: message_delta\ndata: {"a":1}\ndata: {"b":2}\n\n'
    assert cut(Framing.SSE, [event.encode() + b"data: [DONE]"]) == ([event], "data: [DONE]")


def test_bytes_that_are_no_text_spoil_only_their_own_frame() -> None:
    assert cut(Framing.NDJSON, ["é\n".encode() + b"\xf0\x9f\nb\n"]) == (["é", "\ufffd", "b"], None)


def test_a_cutter_that_was_closed_has_nothing_left() -> None:
    cutter = FrameCutter(Framing.NDJSON)
    cutter.feed(b"rest")
    assert cutter.close() == "rest"
    assert cutter.close() is None
