"""One line of a terminal that is written over while a command works; nothing where the output is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from worker.progress import Meter, Progress
from worker.sources.base import Listener, Miss

if TYPE_CHECKING:
    from typing_extensions import Self


class StatusLine:
    """How far a command is, on stderr; what is to stay goes to `say`. Whoever brings models tells its `listener`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Prepare; nothing is written yet."""
        self._shown = sys.stderr.isatty()
        self._say = say
        self.listener = Listener(self._progressed, self._passed_over, lambda text: say(f"Note: {text}"))

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the line empty."""
        self._write("")

    def metered(self, what: str) -> Callable[[int], Meter]:
        """Return a maker of meters that show `what` is going on."""
        return lambda total_bytes: Meter(total_bytes, lambda progress: self._progressed(what, progress))

    def _progressed(self, source: str, progress: Progress) -> None:
        self._write(f"{source}: {progress}")

    def _passed_over(self, miss: Miss) -> None:
        if not miss.beside:
            self._write("")
            self._say(f"{miss.source}: {miss.reason}")

    def _write(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
