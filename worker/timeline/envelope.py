"""What wraps a log line on its way here: console exports, container stamps, shippers' prefixes."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.timeline import stamps
from worker.timeline.stamps import Stamp

_TEXT_KEYS = ("line", "message", "msg", "log", "text", "content", "body")
_TIME_KEYS = ("ts", "timestamp", "time", "@timestamp", "datetime", "date", "createdAt", "created_at", "dt")
_LIST_KEYS = ("logs", "data", "lines", "events", "records", "results", "items")
# A record in a record in a record is an export of a shipper of a container: deeper is not a log.
_DEPTH = 4

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SDK_PLAIN = re.compile(r"(TRACE|DEBUG|INFO|WARN|ERROR|TIP) *\| (?:(?P<job>[\w-]+) \| )?(?P<message>.*)")
_PREFIXES = (
    re.compile(r"data: ?(?=\S)"),  # server-sent events
    re.compile(r"(?:stdout|stderr) [FP] "),  # the container runtime of Kubernetes
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./-]+(?:\[\d+\])?: "),  # journald
    re.compile(r"\[(?!GIN\])[\w.-]{1,64}\] (?=\S)"),  # a worker's name or a level, as consoles print them
    re.compile(r"(?:trace|debug|info|warn|warning|error) +(?=time=)"),
    re.compile(r"[a-z][\w.-]{0,63} +\| "),  # docker compose
)


@dataclass(frozen=True)
class Line:
    """One line without its wrapping."""

    stamp: Stamp | None
    text: str
    """What the program wrote; empty when it wrote a JSON object."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object the program wrote, as one of the worker's events or one of the SDK's lines."""


def lines(content: str) -> list[Line]:
    """Unwrap a whole log: an export in JSON or CSV, or lines of any mixture, in the order they were written."""
    unwrapped = list(_unwrapped(content))
    return unwrapped[::-1] if _newest_first(unwrapped) else unwrapped


def _unwrapped(content: str) -> Iterator[Line]:
    whole = _json(content) if content.lstrip()[:1] in {"[", "{"} else None
    if whole is not None:
        yield from _from_export(whole)
        return
    table = _table(content)
    for text in content.splitlines() if table is None else ():
        if text.strip():
            yield _peel(text, None)
    yield from table or ()


def _newest_first(unwrapped: list[Line]) -> bool:
    times = [line.stamp.at_ns for line in unwrapped if line.stamp is not None]
    falls = sum(after < before for before, after in itertools.pairwise(times))
    rises = sum(after > before for before, after in itertools.pairwise(times))
    return falls > rises


def _from_export(whole: Any) -> Iterator[Line]:
    if isinstance(whole, dict):
        listed = next((whole[key] for key in _LIST_KEYS if isinstance(whole.get(key), list)), [whole])
        yield from _from_export(listed)
        return
    for item in whole if isinstance(whole, list) else ():
        if isinstance(item, dict):
            yield _open_record(item, None, _DEPTH)
        elif isinstance(item, str):
            yield _peel(item, None)


def _table(content: str) -> list[Line] | None:
    header = content.lstrip().split("\n", 1)[0].strip().lower()
    columns = [name.strip().strip('"') for name in header.split(",")]
    text_key = next((key for key in _TEXT_KEYS if key in columns), None)
    time_key = next((key.lower() for key in _TIME_KEYS if key.lower() in columns), None)
    if text_key is None or time_key is None:
        return None
    text_at, time_at = columns.index(text_key), columns.index(time_key)
    try:
        rows = list(csv.reader(io.StringIO(content.lstrip().replace("\0", ""), newline="")))[1:]
    except csv.Error:
        return None
    whole_rows = (row for row in rows if len(row) > max(text_at, time_at))
    return [_peel(row[text_at], stamps.value(row[time_at])) for row in whole_rows]


def _peel(text: str, stamp: Stamp | None, depth: int = _DEPTH) -> Line:
    text = _COLOUR.sub("", text).strip("\r\n\ufeff")
    while True:
        found, rest = stamps.leading(text)
        if found is not None:
            stamp, text = stamps.finer(stamp, found), rest
            continue
        plain = _SDK_PLAIN.fullmatch(text)
        if plain is not None:
            return Line(stamp, "", {"requestId": plain["job"], "message": plain["message"]})
        prefix = next((match for match in (pattern.match(text) for pattern in _PREFIXES) if match), None)
        if prefix is None:
            break
        text = text[prefix.end() :]
    record = _json(text) if text.startswith("{") and depth else None
    return _open_record(record, stamp, depth) if isinstance(record, dict) else Line(stamp, text)


def _open_record(record: dict[str, Any], stamp: Stamp | None, depth: int) -> Line:
    if "event" in record and "at_ns" in record:
        return Line(stamp, "", record)
    if "requestId" in record and isinstance(record.get("message"), str):
        return Line(stamps.finer(stamp, _time_of(record)), "", record)
    text = next((record[key] for key in _TEXT_KEYS if isinstance(record.get(key), str)), None)
    if text is None or depth <= 1:
        return Line(stamp, "")
    return _peel(text, stamps.finer(stamp, _time_of(record)), depth - 1)


def _time_of(record: Mapping[str, Any]) -> Stamp | None:
    return next((found for found in (stamps.value(record.get(key)) for key in _TIME_KEYS) if found), None)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
