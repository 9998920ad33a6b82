"""Every process below one, whoever is its leader by now, and their end by force."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from pathlib import Path


def below(pid: int) -> list[int]:
    """Return the ids of what `pid` started, of what that started and so on; nothing where there is no /proc."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # It may be gone already. The name in parentheses may hold anything; the parent is the second field after it.
        with contextlib.suppress(OSError):
            fields = stat.read_bytes().rpartition(b")")[2].split()
            children[int(fields[1])].append(int(stat.parent.name))
    found: list[int] = []
    unseen = [pid]
    while unseen:
        found += children[unseen[0]]
        unseen += children[unseen.pop(0)]
    return found


def end(pid: int) -> None:
    """Kill everything below `pid`, also what starts while this looks, but not `pid` itself."""
    ended: set[int] = set()
    while left := set(below(pid)) - ended:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        ended |= left
