"""The one writer: an event becomes one JSON line."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from worker.events.event import Event
from worker.events.of_worker import ServerLogged

Listener = Callable[[Event, int], None]
# A boot writes some twenty events beside the server's log.
RECENT_EVENTS = 64


class EventWriter:
    """The one place that prints events. Safe to use from threads and from the event loop."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        """Write to `stream`, or to standard output."""
        self._stream = stream if stream is not None else sys.stdout
        self._lock = threading.Lock()
        self._seq = 0
        self._recent: deque[tuple[Event, int]] = deque(maxlen=RECENT_EVENTS)
        self._listeners: list[Listener] = []

    def write(self, event: Event, at_ns: int | None = None) -> None:
        """Print `event` as one JSON line stamped with wall-clock nanoseconds and a sequence number.

        `at_ns` is for facts that were timed before this writer existed.
        """
        with self._lock:
            self._seq += 1
            at_ns = at_ns if at_ns is not None else time.time_ns()
            record = {"at_ns": at_ns, "seq": self._seq, "event": event.name}
            record.update(dataclasses.asdict(event))
            # ASCII escapes keep lone surrogates from killing the line; one write keeps lines of other
            # processes (the SDK's ping child) from landing in the middle of it.
            line = json.dumps(record, separators=(",", ":"), allow_nan=False) + os.linesep
            self._stream.write(line)
            self._stream.flush()
            if not isinstance(event, ServerLogged):
                self._recent.append((event, at_ns))
                for listener in self._listeners:
                    listener(event, at_ns)

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each event and its time, beginning with the latest that were written.

        The server's log is left out. A listener must not write events itself.
        """
        with self._lock:
            self._listeners.append(listener)
            for event, at_ns in self._recent:
                listener(event, at_ns)
