"""Leases: one holder at a time among real processes, and an end to the right of those that died or slept."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.lease import Lease, LeaseLost
from worker.local.process import wait_for

ROOT = Path(__file__).parents[2]
LONG_S = 60.0
HOLDER = """
import sys, time
from pathlib import Path
from worker.lease import Lease
lease = Lease.acquire(Path(sys.argv[1]), term_s=float(sys.argv[2]), note="holder")
print(lease.owner if lease else "none", flush=True)
if lease:
    with lease.kept():
        sys.stdin.readline()
"""
# Takes the lease as often as it can and writes what it does; two lines of two holders must never mix.
RACER = """
import os, sys, time
from pathlib import Path
from worker.lease import Lease
path, log, until = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while time.time() < until:
    lease = Lease.acquire(path, term_s=60)
    if lease is None:
        time.sleep(0.001)
        continue
    os.write(fd, f"in {lease.owner}\\n".encode())
    time.sleep(0.002)
    os.write(fd, f"out {lease.owner}\\n".encode())
    lease.release()
"""
# All wait for the same moment, then try once to take over what a dead holder left.
HEIR = """
import sys
from pathlib import Path
from worker.lease import Lease
print("ready", flush=True)
sys.stdin.readline()
print("won" if Lease.acquire(Path(sys.argv[1]), term_s=60) else "lost", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared" / "kernels.lease"


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir()) if path.parent.exists() else []


def age(path: Path, seconds: float) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - int(seconds * 1e9)))


def take(path: Path, term_s: float = LONG_S) -> Lease:
    lease = Lease.acquire(path, term_s=term_s)
    assert lease is not None
    return lease


@contextlib.contextmanager
def program(source: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", source, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_a_lease_is_held_by_one_and_free_again_when_given_back(path: Path) -> None:
    lease = take(path)
    assert Lease.acquire(path, term_s=LONG_S) is None
    lease.check()
    lease.release()
    assert names(path) == []
    take(path).release()


def test_the_file_says_who_holds_it_for_how_long_and_for_what(path: Path) -> None:
    lease = Lease.acquire(path, term_s=LONG_S, note="kernels.tar")
    assert lease is not None
    assert json.loads(path.read_text()) == {"owner": lease.owner, "term_s": LONG_S, "note": "kernels.tar"}
    assert names(path) == ["kernels.lease"]


def test_a_lease_that_ran_out_is_taken_over_and_its_holder_is_told(path: Path) -> None:
    first = take(path, term_s=10)
    age(path, 11)
    second = take(path)
    with pytest.raises(LeaseLost, match=r"kernels\.lease was taken over"):
        first.check()
    first.release()
    second.check()
    assert names(path) == ["kernels.lease"]


def test_the_term_is_that_of_the_holder_and_not_of_who_comes(path: Path) -> None:
    take(path, term_s=100)
    age(path, 50)
    assert Lease.acquire(path, term_s=1) is None


def test_a_holder_that_slept_through_its_term_knows(path: Path) -> None:
    lease = take(path, term_s=10)
    age(path, 11)
    with pytest.raises(LeaseLost, match="ran out"):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.renew()


def test_renewing_begins_the_term_anew(path: Path) -> None:
    lease = take(path, term_s=10)
    age(path, 9)
    lease.renew()
    age(path, 9)
    lease.check()
    assert Lease.acquire(path, term_s=10) is None


def test_a_lease_that_was_removed_is_lost(path: Path) -> None:
    lease = take(path)
    path.unlink()
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()


def test_a_kept_lease_is_renewed_and_given_back(path: Path) -> None:
    with take(path, term_s=0.6).kept() as lease:
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s:
            assert Lease.acquire(path, term_s=LONG_S) is None
            time.sleep(0.05)
        lease.check()
    assert names(path) == []
    assert [t.name for t in threading.enumerate() if t.name == "lease"] == []


def test_a_kept_lease_that_was_taken_over_is_left_to_the_new_holder(path: Path) -> None:
    first = take(path, term_s=0.6)
    with first.kept():
        path.unlink()
        second = take(path)
        assert wait_for(lambda: [t for t in threading.enumerate() if t.name == "lease"] == [])
        with pytest.raises(LeaseLost):
            first.check()
    second.check()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[1]", b'{"owner": 5, "term_s": "long"}', b"null"])
def test_a_lease_nobody_can_read_holds_for_a_term_and_not_for_ever(content: bytes, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert Lease.acquire(path, term_s=10) is None
    age(path, 11)
    take(path, term_s=10).check()
    assert names(path) == ["kernels.lease"]


def test_an_heir_that_comes_late_leaves_the_lease_to_the_one_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(path, term_s=10)
    age(path, 11)
    real = os.link
    winners: list[Lease] = []

    def link(source: Path, target: Path) -> None:
        # Between the look at the stale lease and the claim to it somebody else took it over, and was done with that.
        if target.suffix == ".heir" and not winners:
            path.unlink()
            winners.append(take(path))
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert Lease.acquire(path, term_s=10) is None
    winners[0].check()
    assert names(path) == ["kernels.lease"]


def test_a_holder_that_wakes_before_the_heir_is_done_keeps_its_lease(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = take(path, term_s=10)
    age(path, 11)
    real = os.link

    def link(source: Path, target: Path) -> None:
        os.utime(path)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert Lease.acquire(path, term_s=10) is None
    holder.check()
    assert names(path) == ["kernels.lease"]


def test_a_lease_given_back_meanwhile_is_not_inherited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = take(path, term_s=10)
    age(path, 11)
    real = os.link

    def link(source: Path, target: Path) -> None:
        if target.suffix == ".heir":
            holder.release()
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert Lease.acquire(path, term_s=10) is None
    assert names(path) == []


def test_an_heir_that_died_of_it_does_not_keep_the_others_out_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(path, term_s=10)
    age(path, 11)
    with monkeypatch.context() as patch:
        # It is killed when it has the claim and not yet the lease.
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            Lease.acquire(path, term_s=10)
    [claim] = path.parent.glob("*.heir")
    assert Lease.acquire(path, term_s=10) is None
    age(claim, 11)
    # The first to see that it is dead removes it, the next one inherits.
    assert Lease.acquire(path, term_s=10) is None
    take(path).check()


@pytest.mark.parametrize("owner", ["../../etc/x", "a/b", "x" * 5000, "\x00"])
def test_a_name_that_is_no_file_name_is_inherited_from_like_any(path: Path, owner: str) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"owner": owner, "term_s": 10}))
    age(path, 11)
    take(path).check()
    assert names(path) == ["kernels.lease"]


def refusing(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_filesystem_without_hard_links_has_leases_too(code: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(code, monkeypatch)
    lease = take(path, term_s=10)
    lease.check()
    assert Lease.acquire(path, term_s=10) is None
    age(path, 11)
    take(path).check()
    assert names(path) == ["kernels.lease"]


def test_a_link_whose_answer_was_lost_on_the_network_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        real(source, target)  # sent again, and refused because it was done

    monkeypatch.setattr(os, "link", link)
    take(path).check()


def test_a_full_disk_leaves_no_trace_of_a_lease(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, _: bytes) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        Lease.acquire(path, term_s=10)
    assert names(path) == []


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(OSError, match="plain"):
        Lease.acquire(tmp_path / "plain" / "lease", term_s=10)


def test_a_holder_in_another_process_keeps_others_out_for_as_long_as_it_lives(path: Path) -> None:
    with program(HOLDER, path, 1.0) as holder:
        assert len(line(holder)) == 32
        until_s = time.monotonic() + 2.5
        while time.monotonic() < until_s:
            assert Lease.acquire(path, term_s=1.0) is None
            time.sleep(0.1)
        go(holder)
        holder.wait(30)
    assert names(path) == []


def test_a_holder_that_is_killed_loses_its_lease_at_the_end_of_its_term(path: Path) -> None:
    with program(HOLDER, path, 2.0) as holder:
        line(holder)
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
    killed_s = time.monotonic()
    assert Lease.acquire(path, term_s=2.0) is None
    got: list[Lease | None] = []
    assert wait_for(lambda: got.append(Lease.acquire(path, term_s=2.0)) or got[-1] is not None, 30)
    # Not before a term since the last renewal, which was at most a third of a term before the kill.
    assert time.monotonic() - killed_s > 1.0
    assert names(path) == ["kernels.lease"]


def test_a_holder_that_is_frozen_past_its_term_finds_out_when_it_wakes(path: Path) -> None:
    with program(HOLDER, path, 1.0) as holder:
        line(holder)
        holder.send_signal(signal.SIGSTOP)
        got: list[Lease | None] = []
        assert wait_for(lambda: got.append(Lease.acquire(path, term_s=LONG_S)) or got[-1] is not None, 30)
        holder.send_signal(signal.SIGCONT)
        go(holder)
        holder.wait(30)
    assert got[-1] is not None
    got[-1].check()  # what woke up gave back nothing that was not its own


def test_processes_that_race_for_a_lease_never_hold_it_together(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(program(RACER, path, log, time.time() + 3)) for _ in range(4)]
        for racer in racers:
            assert racer.wait(60) == 0
    lines = log.read_text().splitlines()
    assert len(lines) > 20
    for entered, left in zip(lines[::2], lines[1::2], strict=True):
        assert entered.removeprefix("in ") == left.removeprefix("out ")
    assert names(path) == []


def test_of_many_heirs_of_a_dead_holder_exactly_one_takes_over(path: Path) -> None:
    for _ in range(3):
        take(path, term_s=10)
        age(path, 11)
        with contextlib.ExitStack() as stack:
            heirs = [stack.enter_context(program(HEIR, path)) for _ in range(4)]
            assert [line(heir) for heir in heirs] == ["ready"] * 4
            for heir in heirs:
                go(heir)
            assert sorted(line(heir) for heir in heirs) == ["lost", "lost", "lost", "won"]
        assert names(path) == ["kernels.lease"]
        path.unlink()
