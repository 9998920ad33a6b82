from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.local.engine import duration
from worker.local.engine.duration import DurationInvalid


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("-1m", -60),
        ("+2s", 2),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("300ms", 0.3),
        ("2h45m30.5s", 9930.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("7ns", 7e-9),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text: str, seconds: float) -> None:
    assert duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("abc", 'time: invalid duration "abc"'),
        ("5", 'time: missing unit in duration "5"'),
        ("-1", 'time: missing unit in duration "-1"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("3 days", 'time: unknown unit " days" in duration "3 days"'),
        ("3d", 'time: unknown unit "d" in duration "3d"'),
        ("h5", 'time: invalid duration "h5"'),
    ],
)
def test_a_wrong_duration_is_refused_in_gos_words(text: str, message: str) -> None:
    with pytest.raises(DurationInvalid) as caught:
        duration.parse(text)
    assert str(caught.value) == message


@given(st.integers(0, 10_000), st.integers(0, 59), st.integers(0, 59))
def test_hours_minutes_and_seconds_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert duration.parse(f"{hours}h{minutes}m{seconds}s") == pytest.approx(hours * 3600 + minutes * 60 + seconds)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(DurationInvalid):
        assert math.isfinite(duration.parse(text))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("-1", math.inf), ("-1m", math.inf), ("0", 0), ("90", 90), ("10m", 600), ("", 300), ("soon", 300), ("1.5", 300)],
)
def test_the_environment_allows_plain_seconds_and_forgives(text: str, seconds: float) -> None:
    assert duration.from_environment(text, 300) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"), [(-1, math.inf), (0, 0), (2.5, 2.5), ("10m", 600), ("-1s", math.inf), ("0", 0)]
)
def test_a_request_gives_a_number_or_a_duration(value: object, seconds: float) -> None:
    assert duration.from_json(value) == seconds


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-1", 'time: missing unit in duration "-1"'),
        (True, "Unsupported type: 'bool'"),
        ([1], "Unsupported type: '[]interface {}'"),
        ({}, "Unsupported type: 'map[string]interface {}'"),
    ],
)
def test_a_request_forgives_nothing(value: object, message: str) -> None:
    with pytest.raises(DurationInvalid) as caught:
        duration.from_json(value)
    assert str(caught.value) == message
