"""What a process holds right now: memory, threads, open files, children, and the tasks of its event loops."""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 10.0


@dataclass(frozen=True)
class Vitals:
    """One look at a process. `tasks` are those of asyncio, in all of its loops."""

    resident_bytes: int
    threads: int
    files: int
    sockets: int
    children: int
    tasks: int

    def left_over(self, before: Vitals) -> dict[str, int]:
        """Return what there is more of than `before`; memory is judged elsewhere."""
        names = ("threads", "files", "sockets", "children", "tasks")
        grown = {name: getattr(self, name) - getattr(before, name) for name in names}
        return {name: more for name, more in grown.items() if more > 0}


def resident_bytes(pid: int) -> int:
    """Return the physical memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def look(pid: int, probe: Path) -> Vitals:
    """Look at a process of `bench.watched` that writes its count of tasks to `probe`; children without their own.

    Raises:
        TimeoutError: it does not answer.
    """
    process = Path(f"/proc/{pid}")
    targets = [_target(entry) for entry in (process / "fd").iterdir()]
    return Vitals(
        resident_bytes=resident_bytes(pid),
        threads=len(list((process / "task").iterdir())),
        files=len(targets),
        sockets=sum(target.startswith("socket:") for target in targets),
        children=sum(len((task / "children").read_text().split()) for task in (process / "task").iterdir()),
        tasks=_tasks(pid, probe),
    )


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except FileNotFoundError:
        return ""


def _tasks(pid: int, probe: Path) -> int:
    probe.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline_s = time.monotonic() + LIMIT_S
    while not probe.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the worker's loop does not answer")
        time.sleep(0.005)
    return int(probe.read_text(encoding="ascii"))
