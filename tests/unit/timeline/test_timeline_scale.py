import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.timeline.scale import Scale, duration

MS = 1_000_000

moments = st.lists(st.integers(0, 10**12), min_size=2, max_size=12).map(sorted)


@given(moments)
def test_printed_lengths_of_pieces_add_up_to_the_printed_whole(edges: list[int]) -> None:
    scale = Scale(edges[0], edges[-1], cells=40)
    pieces = [float(scale.length(start, end)) for start, end in itertools.pairwise(edges)]
    assert sum(pieces) == pytest.approx(float(scale.moment(edges[-1])))


@pytest.mark.parametrize(("total_ms", "unit", "printed"), [(9999, "ms", "9999"), (10_000, "s", "10.000")])
def test_the_unit_follows_the_length_of_the_whole(total_ms: int, unit: str, printed: str) -> None:
    scale = Scale(5, 5 + total_ms * MS, cells=40)
    assert (scale.unit, scale.moment(scale.end_ns)) == (unit, printed)


@pytest.mark.parametrize(
    ("start", "end", "bar"),
    [
        (0, 80, "██████████"),
        (0, 40, "█████"),
        (40, 60, "     ██▌"),
        (40, 40, "     ▏"),
        (0, 1, "▏"),
        (80, 80, "         █"),
    ],
)
def test_a_bar_is_as_long_as_its_time(start: int, end: int, bar: str) -> None:
    assert Scale(0, 80, cells=10).bar(start, end, "█").rstrip(" ") == bar


def test_a_bar_of_whole_characters_rounds_up() -> None:
    assert Scale(0, 80, cells=10, ascii_only=True).bar(40, 57, "#") == "     ###"
    assert Scale(0, 80, cells=10).bar(40, 57, "░") == "     ░░░"


@given(moments, st.integers(10, 200), st.booleans(), st.sampled_from("█░#"))
def test_no_bar_is_wider_than_its_place_or_empty(edges: list[int], cells: int, ascii_only: bool, fill: str) -> None:  # noqa: FBT001 - hypothesis fills it
    scale = Scale(edges[0], edges[-1], cells, ascii_only=ascii_only)
    for start, end in itertools.combinations_with_replacement(edges, 2):
        bar = scale.bar(start, end, fill)
        assert bar.strip(" ")
        assert len(bar) <= cells
        assert len(scale.axis()) == cells


def test_the_axis_has_round_marks_at_their_place() -> None:
    assert Scale(0, 5000 * MS, cells=50).axis() == "0         1000      2000      3000      4000    ms"
    assert Scale(0, 50_000 * MS, cells=40).axis() == "0               20              40     s"


def test_a_folded_wait_takes_no_place_and_keeps_its_numbers() -> None:
    scale = Scale(0, 1000, cells=8, folded=(20, 940))
    assert scale.drawn_ns == 80
    assert scale.bar(0, 20, "#") == "##"
    assert scale.bar(20, 940, "#") == "  #"
    assert scale.bar(960, 1000, "#") == "    ####"


@given(st.integers(0, 10**11), st.integers(0, 10**11))
def test_an_axis_with_a_fold_is_as_wide_as_any(first: int, second: int) -> None:
    fold = (min(first, second), max(first, second))
    assert len(Scale(0, 10**11, cells=40, folded=fold).axis()) == 40


def test_an_axis_stops_naming_moments_at_a_fold() -> None:
    axis = Scale(0, 600_000 * MS, cells=40, folded=(5_000 * MS, 598_000 * MS)).axis()
    assert axis == "0          2          4                s"


@pytest.mark.parametrize(
    ("took_ns", "text"),
    [
        (0, "0.0 ms"),
        (12_340_000, "12.3 ms"),
        (812_000_000, "812 ms"),
        (3_214_000_000, "3.21 s"),
        (-2_000_000_000, "-2.00 s"),
    ],
)
def test_a_duration_in_a_sentence(took_ns: int, text: str) -> None:
    assert duration(took_ns) == text
