"""How much processor time this container may use, which the number of CPUs it sees does not tell."""

from __future__ import annotations

from pathlib import Path

from worker import cgroups
from worker.environment import THREADS_VARIABLE, Setting, Unset


def quota_cpus(root: Path = cgroups.ROOT, own: Path = cgroups.OWN) -> float | None:
    """Return how many CPUs' worth of time the tightest group around this process allows, None without a limit."""
    read = {1: _version_1, 2: _version_2}
    found = [read[version](folder) for folder, version in cgroups.around("cpu", root, own)]
    return min((cpus for cpus in found if cpus is not None), default=None)


def threads(quota: float | None, cpus: int) -> Setting | Unset:
    """Return what the runner is told about threads, given the `quota` in CPUs and the number of `cpus` it may run on.

    Left to itself it starts a thread for each physical core of the host, whatever the container may use of them.
    """
    if quota is None:
        return Unset(THREADS_VARIABLE, f"no quota limits the time of the {cpus} CPUs here")
    if quota >= cpus:
        return Unset(THREADS_VARIABLE, f"the quota of {quota:g} CPUs does not limit the {cpus} CPUs here")
    number = max(1, int(quota))
    reason = f"the container may use {quota:g} of {cpus} CPUs; the runner would start a thread per core of the host"
    return Setting(THREADS_VARIABLE, str(number), reason)


def _version_2(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" means no limit here
        return None


def _version_1(folder: Path) -> float | None:
    try:
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return limit / period if limit > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
