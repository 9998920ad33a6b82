"""The worker's own program with a count of its asyncio tasks: `python -m bench.watched` in place of start.sh.

On SIGUSR1 the number of unfinished tasks in all event loops is written to the file WATCHED_PROBE, whole or not at all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import handler

_LOOPS: list[asyncio.AbstractEventLoop] = []


class _Noting(asyncio.DefaultEventLoopPolicy):
    """Remembers the loops it makes."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Make a loop as always."""
        _LOOPS.append(super().new_event_loop())
        return _LOOPS[-1]


def _tell(*_: object) -> None:
    probe = Path(os.environ["WATCHED_PROBE"])
    count = sum(len(asyncio.all_tasks(loop)) for loop in _LOOPS if not loop.is_closed())
    half = probe.with_suffix(".half")
    half.write_text(str(count), encoding="ascii")
    half.replace(probe)


if __name__ == "__main__":
    asyncio.set_event_loop_policy(_Noting())
    signal.signal(signal.SIGUSR1, _tell)
    sys.exit(handler.main())
