"""Files that are seen whole or not at all, and what is left of them when their writer dies."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.bounded import Stalled
from worker.local.process import wait_for
from worker.partial import Partial, reclaim

ROOT = Path(__file__).parents[2]
# Begins the file, says so, and is then at the test's mercy.
WRITER = """
import os, sys, time
from pathlib import Path
from worker.partial import Partial
partial = Partial.begin(Path(sys.argv[1]), stall_s=60)
partial.reserve(1 << 20)
os.pwrite(partial.fd, b"half", 0)
print("begun", flush=True)
sys.stdin.readline()
os.pwrite(partial.fd, b"done", 0)
partial.publish(1_700_000_000_000_000_000)
print("published", flush=True)
"""


def begin(target: Path, stall_s: float = 60) -> Partial:
    return Partial.begin(target, stall_s=stall_s)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def writer(target: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has begun `target`."""
    command = [sys.executable, "-c", WRITER, str(target)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def test_a_file_has_its_name_only_when_it_is_published(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "file"
    partial = begin(target)
    os.write(partial.fd, b"content")
    assert not target.exists()
    partial.publish(1_700_000_000_123_456_789)
    assert target.read_bytes() == b"content"
    assert target.stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert names(target.parent) == ["file"]


def test_a_discarded_file_leaves_nothing_and_the_old_one_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    partial = begin(target)
    os.write(partial.fd, b"new")
    partial.discard()
    assert names(tmp_path) == ["file"]
    assert target.read_bytes() == b"old"


def test_discarding_after_publishing_does_nothing(tmp_path: Path) -> None:
    partial = begin(tmp_path / "file")
    partial.publish(0)
    partial.discard()
    assert names(tmp_path) == ["file"]


def test_a_discarded_file_holds_no_room_even_while_somebody_has_it_open(tmp_path: Path) -> None:
    partial = begin(tmp_path / "file")
    held = os.dup(partial.fd)
    try:
        partial.reserve(8 << 20)
        assert os.fstat(held).st_blocks > 0
        partial.discard()
        assert os.fstat(held).st_blocks == 0
    finally:
        os.close(held)


def test_reserving_gives_the_size_and_the_room(tmp_path: Path) -> None:
    partial = begin(tmp_path / "file")
    partial.reserve(3 << 20)
    found = os.fstat(partial.fd)
    partial.discard()
    assert found.st_size == 3 << 20
    assert found.st_blocks * 512 >= 3 << 20


def test_a_file_of_nothing_can_be_reserved(tmp_path: Path) -> None:
    partial = begin(tmp_path / "file")
    partial.reserve(0)
    partial.publish(0)
    assert (tmp_path / "file").stat().st_size == 0


def test_more_than_the_disk_has_is_refused_at_once(tmp_path: Path) -> None:
    partial = begin(tmp_path / "file")
    stats = os.statvfs(tmp_path)
    try:
        with pytest.raises(OSError, match=r"\.file\.partial") as caught:
            partial.reserve(stats.f_blocks * stats.f_frsize + (1 << 40))
    finally:
        partial.discard()
    assert caught.value.errno in {errno.ENOSPC, errno.EFBIG}
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("a file where a folder is wanted")
    with pytest.raises(OSError, match="plain"):
        begin(tmp_path / "plain" / "file")


def test_what_a_killed_writer_left_is_used_again_for_the_same_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with writer(target) as process:
        process.kill()
        process.wait(30)
        assert names(tmp_path) == [".file.partial"]
        partial = begin(target)
        assert os.fstat(partial.fd).st_size == 0
        os.write(partial.fd, b"mine")
        partial.publish(0)
    assert names(tmp_path) == ["file"]
    assert target.read_bytes() == b"mine"


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = [".hidden", "blob", "x.partial"]
    for name in kept:
        (tmp_path / name).write_text("kept")
    (tmp_path / ".gone.partial").write_text("of a process that is not there any more")
    with writer(tmp_path / "live"), writer(tmp_path / "dead") as dead:
        dead.kill()
        dead.wait(30)
        assert reclaim(tmp_path) == 2
        assert names(tmp_path) == sorted([*kept, ".live.partial"])


def test_reclaiming_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / ".trap.partial").symlink_to(tmp_path / "precious")
    assert reclaim(tmp_path) == 0
    assert (tmp_path / "precious").read_text() == "kept"


def test_reclaiming_a_folder_that_is_not_there_removes_nothing(tmp_path: Path) -> None:
    assert reclaim(tmp_path / "absent") == 0


def test_a_second_writer_waits_until_the_first_has_published(tmp_path: Path) -> None:
    target = tmp_path / "file"
    got: list[Partial] = []
    with writer(target) as process:
        thread = threading.Thread(target=lambda: got.append(begin(target)))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        thread.join(30)
        assert got
        assert target.read_bytes()[:4] == b"done"
        got[0].discard()
    assert target.read_bytes()[:4] == b"done"


def test_a_second_writer_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with writer(target) as process:
        thread = threading.Thread(target=lambda: begin(target).publish(0))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        process.send_signal(signal.SIGKILL)
        thread.join(30)
    assert names(tmp_path) == ["file"]


def test_waiting_ends_when_the_first_does_not_move(tmp_path: Path) -> None:
    with writer(tmp_path / "file"), pytest.raises(Stalled, match=r"written nothing for 0\.3 s"):
        begin(tmp_path / "file", stall_s=0.3)


def test_waiting_goes_on_while_the_first_writes(tmp_path: Path) -> None:
    first = begin(tmp_path / "file")
    failed: list[Stalled] = []

    def wait() -> None:
        try:
            begin(tmp_path / "file", stall_s=1.0).discard()
        except Stalled as exc:
            failed.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    until_s = time.monotonic() + 2.5
    while time.monotonic() < until_s:
        os.pwrite(first.fd, b"more", 0)
        time.sleep(0.05)
    assert thread.is_alive()
    assert not failed
    first.discard()
    thread.join(30)
    assert not failed


def test_waiting_can_be_ended_from_outside(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def check() -> None:
        raise Enough

    with writer(tmp_path / "file"):
        with pytest.raises(Enough):
            Partial.begin(tmp_path / "file", stall_s=60, check=check)
        assert names(tmp_path) == [".file.partial"]


def test_a_thread_that_hangs_with_the_file_open_does_not_block_the_next_writer(tmp_path: Path) -> None:
    partial = begin(tmp_path / "file")
    held = os.dup(partial.fd)
    try:
        partial.discard()
        begin(tmp_path / "file", stall_s=5).publish(0)
    finally:
        os.close(held)
    assert names(tmp_path) == ["file"]


def test_many_writers_of_one_file_take_turns(tmp_path: Path) -> None:
    inside, most, done = 0, 0, []
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal inside, most
        partial = begin(tmp_path / "file")
        with lock:
            inside += 1
            most = max(most, inside)
        os.write(partial.fd, str(number).encode())
        with lock:
            inside -= 1
        partial.publish(0)
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(done) == 8, 60)
    for thread in threads:
        thread.join(30)
    assert most == 1
    assert names(tmp_path) == ["file"]
