"""Logs into entries: the worker's own events, and what can be read from anybody's Ollama output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.timeline import envelope, landmarks, stamps
from worker.timeline.envelope import Line
from worker.timeline.landmarks import Landmark
from worker.timeline.stamps import SECOND_NS

# Far beyond any count or duration, and still a float: JSON knows larger whole numbers.
_LARGEST = 1e300


class UnreadableLog(ValueError):
    """The input holds nothing a timeline can be made of; the message is one sentence for a person."""


@dataclass(frozen=True)
class Entry:
    """One thing that happened, in the order of `(at_ns, seq)`."""

    at_ns: int
    """Wall clock, nanoseconds since 1970."""
    seq: int
    """The writer's number for an event; for everything else that of the event before it."""
    name: str
    """A name of the vocabulary, or of a landmark."""
    fields: Mapping[str, Any]
    own: bool = False
    """True for an event the worker wrote itself."""
    exact: bool = True
    """False when the line had no time and was given that of the line before."""
    coarse: bool = False
    """The time was written in whole seconds."""

    def number(self, key: str) -> float | None:
        """Return a field as a number, None when it is missing or none."""
        given = self.fields.get(key)
        sound = isinstance(given, (int, float)) and not isinstance(given, bool) and abs(given) < _LARGEST
        return float(self.fields[key]) if sound else None

    def text(self, key: str) -> str:
        """Return a field as text, empty when it is missing."""
        given = self.fields.get(key)
        return "" if given is None else str(given)


def read(content: str) -> tuple[Entry, ...]:
    """Understand a whole log: event lines, SDK lines, console exports and raw Ollama output in any mixture.

    Raises `UnreadableLog` when no line says anything with a time.
    """
    reader = _Reader()
    for line in envelope.lines(content):
        reader.take(line)
    first = next((entry.at_ns for entry in reader.entries if entry.exact), None)
    if first is not None:
        # What came before the first time is as early as that time, at the latest.
        dated = (entry if entry.at_ns >= 0 else dataclasses.replace(entry, at_ns=first) for entry in reader.entries)
        return tuple(sorted(dated, key=lambda entry: (entry.at_ns, entry.seq)))
    if not content.strip():
        raise UnreadableLog("the log is empty")
    if reader.entries:
        raise UnreadableLog("no line of Ollama in it has a time; collect it with timestamps, as `docker logs -t` does")
    raise UnreadableLog("the log has neither the worker's events nor a line of Ollama's start")


class _Reader:
    """Takes lines in written order and remembers the clock between them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._now_ns = -1
        self._seq = 0
        self._zone_s = 0

    def take(self, line: Line) -> None:
        """Add what one line says, if it says anything."""
        record = line.record
        if "event" in record:
            self._take_event(record)
            return
        landmark = landmarks.recognize_sdk(record) if record else landmarks.recognize(line.text)
        stamp = stamps.finer(line.stamp, self._inner_stamp(line.text, landmark))
        if stamp is not None:
            within = stamp.coarse and stamp.at_ns <= self._now_ns < stamp.at_ns + SECOND_NS
            self._now_ns = self._now_ns if within else stamp.at_ns
        if landmark is not None:
            self._add(landmark, exact=stamp is not None, coarse=stamp is not None and stamp.coarse)

    def _take_event(self, record: Mapping[str, Any]) -> None:
        at_ns, seq, name = _count(record.get("at_ns")), _count(record.get("seq", 0)), record["event"]
        if at_ns is None or seq is None or not isinstance(name, str):
            return
        self._now_ns, self._seq = at_ns, seq
        if name == "server.logged":
            landmark = landmarks.recognize(str(record.get("line", "")))
            if landmark is not None:
                self._add(landmark, exact=True, coarse=False)
            return
        fields = {key: given for key, given in record.items() if key not in {"at_ns", "seq", "event"}}
        self.entries.append(Entry(at_ns, seq, name, fields, own=True))

    def _inner_stamp(self, text: str, landmark: Landmark | None) -> stamps.Stamp | None:
        written = landmarks.slog_time(text)
        if written is not None:
            stamp, _ = stamps.leading(written, self._zone_s)
            if stamp is not None and stamp.zone_s is not None:
                self._zone_s = stamp.zone_s
            return stamp
        date = landmark.fields.get("date") if landmark is not None else None
        return stamps.leading(str(date), self._zone_s)[0] if date else None

    def _add(self, landmark: Landmark, *, exact: bool, coarse: bool) -> None:
        entry = Entry(self._now_ns, self._seq, landmark.name, landmark.fields, exact=exact, coarse=coarse)
        self.entries.append(entry)


def _count(given: Any) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else None
