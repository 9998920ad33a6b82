"""Times as logs write them, turned into nanoseconds since 1970."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

SECOND_NS = 1_000_000_000

_STAMP = re.compile(
    r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)(?:T|\s+-\s+|\s)(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9})\d*)?"
    r"\s?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?(?![\w:])"
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|µs|us|ms|s|m|h)")
_UNIT_NS = {"ns": 1, "us": 1000, "µs": 1000, "ms": 10**6, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}
# Between 1973 and 5138, seconds, milliseconds, microseconds and nanoseconds since 1970 never look alike.
_EPOCH_SCALES = ((10**17, 1), (10**14, 10**3), (10**11, 10**6), (10**8, SECOND_NS))


@dataclass(frozen=True)
class Stamp:
    """A time and how much of it is known."""

    at_ns: int
    coarse: bool = False
    """Whole seconds only: the line was written up to a second after `at_ns`."""
    zone_s: int | None = None
    """Offset from UTC in seconds, when the text named one."""


def leading(text: str, zone_s: int = 0) -> tuple[Stamp | None, str]:
    """Split a line into the time it begins with and the rest.

    `zone_s` is the offset from UTC, in seconds, of times that name no zone.
    """
    found = _STAMP.match(text)
    stamp = _stamp(found, zone_s) if found else None
    if found is None or stamp is None:
        return None, text
    return stamp, text[found.end() :].lstrip()


def value(given: object) -> Stamp | None:
    """Read the time field of a structured record: text, or a number since 1970 in s, ms, µs or ns."""
    if isinstance(given, str):
        stamp, _ = leading(given.strip())
        if stamp is not None:
            return stamp
        try:
            given = float(given) if "." in given else int(given)
        except ValueError:
            return None
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return None
    for least, scale in _EPOCH_SCALES:
        if least <= given < least * 1000:
            return Stamp(int(given * scale), coarse=scale == SECOND_NS and given == int(given))
    return None


def finer(outer: Stamp | None, inner: Stamp | None) -> Stamp | None:
    """Choose between two times of one line: the outer clock's, unless only the inner one has fractions of a second."""
    if outer is None or (inner is not None and outer.coarse and not inner.coarse):
        return inner
    return outer


def duration_ns(text: str) -> int | None:
    """Read a Go duration such as `1m2.5s` or `812.3ms`."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return round(sum(float(number) * _UNIT_NS[unit] for number, unit in parts))


def _stamp(found: re.Match[str], zone_s: int) -> Stamp | None:
    date = found["date"].replace("/", "-")
    try:
        moment = dt.datetime.fromisoformat(f"{date}T{found['clock']}+00:00")
    except ValueError:
        return None
    named = _zone_s(found["zone"])
    offset_s = zone_s if named is None else named
    fraction = found["fraction"]
    seconds = round(moment.timestamp()) - offset_s
    return Stamp(seconds * SECOND_NS + int((fraction or "0").ljust(9, "0")), coarse=fraction is None, zone_s=named)


def _zone_s(text: str | None) -> int | None:
    if text is None:
        return None
    if text in {"Z", "UTC"}:
        return 0
    sign = -1 if text[0] == "-" else 1
    return sign * (int(text[1:3]) * 3600 + int(text[-2:]) * 60)
