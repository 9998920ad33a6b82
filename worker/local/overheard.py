"""The output of a worker, passed on line by line, and the events in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import IO

from worker.events import VOCABULARY, Event, Listener, ServerLogged


def relay(lines: Iterable[str], to: IO[str], listener: Listener) -> None:
    """Write each of `lines` to `to` as it comes; tell `listener` the events, but for the server's log."""
    for line in lines:
        to.write(line)
        to.flush()
        told = read(line)
        if told is not None and not isinstance(told[0], ServerLogged):
            listener(*told)


def read(line: str) -> tuple[Event, int] | None:
    """Return the event that `line` is, with its time in ns since 1970, or None for any other line."""
    try:
        record = json.loads(line)
        kind = VOCABULARY[record["event"]]
        fields = {field.name: record[field.name] for field in dataclasses.fields(kind)}
        return kind(**fields), int(record["at_ns"])
    except (ValueError, KeyError, TypeError):
        return None
