"""The control groups around this process: the folders whose files say what a container may use."""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def around(controller: str, root: Path = ROOT, own: Path = OWN) -> list[tuple[Path, int]]:
    """Return the folders that limit `controller` for this process, each with its interface's version, 1 or 2.

    Folders are named whether or not they exist.
    """
    groups = [(root, 2), (root / controller, 1)]
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = own.read_text().splitlines()
    for line in lines:
        # 0::/group (version 2) or 4:cpu,cpuacct:/group (version 1). In a container the path may be the host's: it is
        # not there then, and the container's own group is the root.
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # What is mounted together has a folder of that name, and mostly one for each controller.
        bases = [(root / controllers, 1), (root / controller, 1)] if controllers else [(root, 2)]
        parts = [part for part in path.split("/") if part not in {"", ".."}]
        groups += [(base.joinpath(*parts[:depth]), v) for base, v in bases for depth in range(len(parts) + 1)]
    return list(dict.fromkeys(groups))
