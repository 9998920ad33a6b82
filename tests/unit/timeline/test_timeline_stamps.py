import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.timeline import stamps
from worker.timeline.stamps import SECOND_NS, Stamp

NOON_NS = 1_796_040_000 * SECOND_NS
"""2026-11-30T12:00:00Z."""


@pytest.mark.parametrize(
    ("text", "stamp", "rest"),
    [
        ("2026-11-30T12:00:00.123456789Z hello", Stamp(NOON_NS + 123_456_789, zone_s=0), "hello"),
        ("2026-11-30T12:00:00Z hello", Stamp(NOON_NS, coarse=True, zone_s=0), "hello"),
        ("2026-11-30 12:00:00.5 hello", Stamp(NOON_NS + SECOND_NS // 2), "hello"),
        ("2026-11-30 12:00:00,250 hello", Stamp(NOON_NS + SECOND_NS // 4), "hello"),
        ("2026-11-30T14:00:00.0+02:00 hello", Stamp(NOON_NS, zone_s=7200), "hello"),
        ("2026-11-30T06:30:00.0-0530", Stamp(NOON_NS, zone_s=-19_800), ""),
        ("2026/11/30 - 12:00:00", Stamp(NOON_NS, coarse=True), ""),
        ("2026/11/30 12:00:00 routes.go:1125: x", Stamp(NOON_NS, coarse=True), "routes.go:1125: x"),
        ("2026-11-30 12:00:00 UTC hello", Stamp(NOON_NS, coarse=True, zone_s=0), "hello"),
        # A tenth digit after the comma is below a nanosecond.
        ("2026-11-30T12:00:00.1234567891Z x", Stamp(NOON_NS + 123_456_789, zone_s=0), "x"),
    ],
)
def test_a_leading_time_is_split_off(text: str, stamp: Stamp, rest: str) -> None:
    assert stamps.leading(text) == (stamp, rest)


@pytest.mark.parametrize(
    "text",
    ["hello 2026-11-30T12:00:00Z", "2026-13-30T12:00:00Z x", "2026-11-30T25:00:00Z x", "2026-11-30", "12:00:00 x"],
)
def test_what_is_no_leading_time_stays_in_the_text(text: str) -> None:
    assert stamps.leading(text) == (None, text)


def test_a_time_without_a_zone_is_in_the_zone_given() -> None:
    stamp, _ = stamps.leading("2026/11/30 - 13:00:00", zone_s=3600)
    assert stamp is not None
    assert stamp.at_ns == NOON_NS
    zoned, _ = stamps.leading("2026-11-30T12:00:00Z", zone_s=3600)
    assert zoned is not None
    assert zoned.at_ns == NOON_NS


@given(st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))  # noqa: DTZ001 - hypothesis wants naive bounds
def test_every_time_python_prints_is_read_back_exactly(moment: dt.datetime, offset_min: int) -> None:
    zoned = moment.replace(tzinfo=dt.timezone(dt.timedelta(minutes=offset_min)))
    stamp, rest = stamps.leading(zoned.isoformat(timespec="microseconds") + " rest")
    since_epoch = zoned - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    assert stamp == Stamp(since_epoch // dt.timedelta(microseconds=1) * 1000, zone_s=offset_min * 60)
    assert rest == "rest"


@pytest.mark.parametrize(
    ("given_value", "at_ns", "coarse"),
    [
        ("2026-11-30T12:00:00.5Z", NOON_NS + SECOND_NS // 2, False),
        (1_796_040_000, NOON_NS, True),
        (1_796_040_000.5, NOON_NS + SECOND_NS // 2, False),
        (1_796_040_000_500, NOON_NS + SECOND_NS // 2, False),
        (1_796_040_000_500_000, NOON_NS + SECOND_NS // 2, False),
        (NOON_NS + 1, NOON_NS + 1, False),
        (str(NOON_NS + 1), NOON_NS + 1, False),
        ("1796040000.5", NOON_NS + SECOND_NS // 2, False),
    ],
)
def test_a_time_field_is_read_in_every_unit(given_value: object, at_ns: int, *, coarse: bool) -> None:
    assert stamps.value(given_value) == Stamp(
        at_ns, coarse=coarse, zone_s=0 if given_value == "2026-11-30T12:00:00.5Z" else None
    )


@pytest.mark.parametrize(
    "given_value", [None, True, "soon", "1.2.3", "", [], {}, 12, -1.0, float("nan"), float("inf"), 10**400, "9" * 5000]
)
def test_what_is_no_time_field_is_no_time(given_value: object) -> None:
    assert stamps.value(given_value) is None


def test_the_outer_clock_wins_unless_only_the_inner_one_is_fine() -> None:
    fine, other, coarse = Stamp(1), Stamp(2), Stamp(3, coarse=True)
    assert stamps.finer(fine, other) is fine
    assert stamps.finer(coarse, fine) is fine
    assert stamps.finer(fine, coarse) is fine
    assert stamps.finer(None, coarse) is coarse
    assert stamps.finer(coarse, None) is coarse
    assert stamps.finer(None, None) is None


@pytest.mark.parametrize(
    ("text", "took_ns"),
    [
        ("812.3ms", 812_300_000),
        ("3.21s", 3_210_000_000),
        ("1m2.5s", 62_500_000_000),
        ("1h2m3s", 3_723_000_000_000),
        ("57.1µs", 57_100),
        ("57.1us", 57_100),
        ("900ns", 900),
    ],
)
def test_a_duration_as_go_prints_it(text: str, took_ns: int) -> None:
    assert stamps.duration_ns(text) == took_ns


@pytest.mark.parametrize("text", ["", "fast", "12", "1.2.3s", "-3s", "3s later", "3 s"])
def test_what_is_no_duration(text: str) -> None:
    assert stamps.duration_ns(text) is None
