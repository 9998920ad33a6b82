"""How much processor time the groups around a process allow, and what the runner is told of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.cgroups import around
from worker.cpu_quota import quota_cpus, threads
from worker.environment import Setting, Unset

ROOT = Path(__file__).parents[2]


class Machine:
    """A made-up machine: its groups, and which group this process is in."""

    def __init__(self, folder: Path, own: str) -> None:
        self.root = folder / "cgroup"
        self.own = folder / "own"
        self.own.write_text(own)

    def v2(self, group: str, text: str) -> None:
        self._write(group, {"cpu.max": text})

    def v1(self, group: str, quota: int, period: int = 100_000) -> None:
        self._write(group, {"cpu.cfs_quota_us": str(quota), "cpu.cfs_period_us": str(period)})

    def _write(self, group: str, files: dict[str, str]) -> None:
        folder = self.root / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")

    @property
    def cpus(self) -> float | None:
        return quota_cpus(self.root, self.own)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("400000 100000", 4),
        ("150000 100000", 1.5),
        ("20000 10000", 2),
        ("max 100000", None),
        ("", None),
        ("400000", None),
        ("400000 0", None),
        ("lots 100000", None),
    ],
)
def test_version_2_says_it_in_one_file(text: str, cpus: float | None, tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    machine.v2("", text)
    assert machine.cpus == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"), [(250_000, 100_000, 2.5), (-1, 100_000, None), (0, 100_000, None), (1, 0, None)]
)
def test_version_1_says_it_in_two(quota: int, period: int, cpus: float | None, tmp_path: Path) -> None:
    machine = Machine(tmp_path, "3:cpu:/\n")
    machine.v1("cpu", quota, period)
    assert machine.cpus == cpus


@pytest.mark.parametrize("own", ["5:cpu,cpuacct:/\n4:memory:/pod\n", "5:cpuacct,cpu:/\n"])
def test_controllers_mounted_together_have_a_folder_of_both_names(own: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, own)
    machine.v1(own.split(":")[1], 300_000)
    assert machine.cpus == 3


@pytest.mark.parametrize("own", ["0::/pod/box\n", "4:memory:/elsewhere\n0::/pod/box\n"])
def test_the_tightest_group_around_the_process_counts(own: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, own)
    machine.v2("", "max 100000")
    machine.v2("pod", "200000 100000")
    machine.v2("pod/box", "800000 100000")
    machine.v2("other", "10000 100000")
    assert machine.cpus == 2


def test_a_path_of_the_host_that_is_not_here_leaves_the_containers_root(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "3:cpu,cpuacct:/docker/0123abcd\n")
    machine.v1("cpu", 700_000)
    assert machine.cpus == 7


def test_another_controllers_group_says_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/box\n2:cpuset:/box\n")
    machine.v1("cpu/box", 100_000)
    assert machine.cpus is None


def test_without_any_group_nothing_limits(tmp_path: Path) -> None:
    assert quota_cpus(tmp_path / "none", tmp_path / "neither") is None


def test_every_folder_is_named_once_and_none_outside_the_root(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("3:cpu:/../a/b\n0::/\n")
    found = around("cpu", tmp_path, own)
    assert len(found) == len(set(found))
    assert (tmp_path / "cpu" / "a" / "b", 1) in found
    assert all(folder.is_relative_to(tmp_path) and ".." not in folder.parts for folder, _ in found)


@pytest.mark.parametrize(
    ("quota", "cpus", "value"),
    [(4, 32, "4"), (2.5, 32, "2"), (0.5, 32, "1"), (31.9, 32, "31")],
)
def test_a_quota_below_the_cpus_is_told_with_its_numbers(quota: float, cpus: int, value: str) -> None:
    told = threads(quota, cpus)
    assert isinstance(told, Setting)
    assert (told.name, told.value, told.from_user) == ("LLAMA_ARG_THREADS", value, False)
    assert f"{quota:g} of {cpus} CPUs" in told.reason


@pytest.mark.parametrize("quota", [None, 32, 64.5])
def test_what_does_not_limit_is_not_told(quota: float | None) -> None:
    told = threads(quota, 32)
    assert isinstance(told, Unset)
    assert "32 CPUs" in told.reason


@pytest.fixture
def half_a_cpu() -> Iterator[Path]:
    """A real group with half a CPU."""
    for base, files in (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_quota_us": "50000"}),
        ("/sys/fs/cgroup", {"cpu.max": "50000 100000"}),
    ):
        group = Path(base) / f"quota-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if all((group / name).exists() for name in files):
                for name, text in files.items():
                    (group / name).write_text(text)
                break
            group.rmdir()
    else:
        pytest.skip("no group with a quota can be made here")
    yield group
    group.rmdir()


def test_a_real_groups_quota_is_read_by_a_process_in_it(half_a_cpu: Path) -> None:
    program = "import sys; sys.stdin.readline(); from worker.cpu_quota import quota_cpus; print(quota_cpus())"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        (half_a_cpu / "cgroup.procs").write_text(str(process.pid))
        printed, _ = process.communicate("go\n", timeout=60)
    assert float(printed) == 0.5
