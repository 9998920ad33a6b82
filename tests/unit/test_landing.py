"""Landing a file: the same bytes, whole or not at all, and nothing left behind on any way out."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker import known_digest, landing
from worker.known_digest import Damaged
from worker.landing import BEFORE, Terms, land
from worker.opened import direct_latency_s
from worker.pace import FAR, Slower
from worker.progress import Halted, Meter, Progress
from worker.readers import BLOCK_BYTES
from worker.storage import cached_share

MIB = 1 << 20
SIZES = [0, 1, mmap.PAGESIZE, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 4097]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make(tmp_path / "volume" / "model.gguf", 2 * BLOCK_BYTES + 999)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "landed" / "model.gguf"


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "digest":
            thread.join(30)
    assert [t.name for t in threading.enumerate() if t.name.startswith(("landing-", "digest"))] == []


def make(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def left(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir()) if target.parent.exists() else []


def halting(action: Callable[[], None]) -> Meter:
    """A meter that does something the first time it is asked, and each time after."""
    return Meter(1, halt=action)


@pytest.mark.parametrize("size", SIZES)
def test_a_file_of_any_size_lands_whole(size: int, tmp_path: Path, target: Path) -> None:
    source = make(tmp_path / "source", size)
    landed = land(source, target, Terms(sha256=sha256(source)))
    assert target.read_bytes() == source.read_bytes()
    assert (landed.path, landed.size_bytes) == (target, size)
    assert landed.took_s > 0
    assert left(target) == ["model.gguf"]


@pytest.mark.parametrize(("latency_s", "words"), [(0.0003, "O_DIRECT, 4 readers"), (0.003, "O_DIRECT, 12 readers")])
def test_the_method_follows_how_far_the_file_is_and_is_told(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, latency_s: float, words: str
) -> None:
    if direct_latency_s(source) is None:
        pytest.skip("no O_DIRECT on this filesystem")
    monkeypatch.setattr(landing, "direct_latency_s", lambda _: latency_s)
    assert land(source, target).method == words
    assert target.read_bytes() == source.read_bytes()


def test_without_direct_reading_it_lands_all_the_same(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing, "direct_latency_s", lambda _: None)
    assert land(source, target).method == "buffered, 1 reader"
    assert target.read_bytes() == source.read_bytes()


def test_the_bytes_in_the_page_cache_are_the_bytes_on_disk_and_the_bytes_of_the_source(
    source: Path, target: Path
) -> None:
    land(source, target)
    cached = target.read_bytes()
    fd = os.open(target, os.O_RDONLY)
    try:
        os.fsync(fd)
        direct_fd = os.open(target, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("no O_DIRECT on this filesystem")
    finally:
        os.close(fd)
    with contextlib.closing(mmap.mmap(-1, 4 * BLOCK_BYTES)) as block:
        # Past the page cache: this is what the device holds.
        count = os.preadv(direct_fd, [block], 0)
        os.close(direct_fd)
        on_disk = block[:count]
    assert cached == on_disk == source.read_bytes()


def test_a_file_that_landed_before_is_not_read_again(source: Path, target: Path) -> None:
    land(source, target)
    first = target.stat().st_ino
    assert land(source, target).method == BEFORE
    assert land(source, target, Terms(sha256=sha256(source))).method == BEFORE
    assert target.stat().st_ino == first
    assert left(target) == ["model.gguf"]


def test_another_file_of_the_same_name_and_size_is_landed_anew(source: Path, target: Path) -> None:
    land(source, target)
    make(source, source.stat().st_size)
    assert land(source, target).method != BEFORE
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_copy_with_a_hole_is_not_published(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    written: list[int] = []

    def without_memory(fd: int, data: memoryview, offset: int) -> int:
        written.append(offset)
        if len(written) == 2:
            raise MemoryError
        return real(fd, data, offset)

    monkeypatch.setattr("worker.readers.os.pwrite", without_memory)
    with pytest.raises(OSError, match=r"[\d,]+ of [\d,]+ bytes were copied"):
        land(source, target)
    assert left(target) == []


def test_hashing_what_landed_before_can_be_stopped(tmp_path: Path, target: Path) -> None:
    source = make(tmp_path / "source", 4 * known_digest.READ_BYTES)
    land(source, target)
    asked: list[int] = []

    def stop() -> None:
        asked.append(1)
        # The first times are before it is looked for.
        if len(asked) > 3:
            raise Halted("SIGTERM")

    with pytest.raises(Halted):
        land(source, target, Terms(sha256=sha256(source)), meter=halting(stop))
    assert left(target) == ["model.gguf"]


def test_a_landed_file_that_rotted_is_landed_anew_when_its_digest_is_known(source: Path, target: Path) -> None:
    land(source, target)
    stat = target.stat()
    with target.open("r+b") as file:
        file.write(b"rot")
    os.utime(target, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    assert land(source, target, Terms(sha256=sha256(source))).method != BEFORE
    assert target.read_bytes() == source.read_bytes()


def test_a_wrong_digest_is_named_and_nothing_is_left(source: Path, target: Path) -> None:
    wanted = "0" * 64
    with pytest.raises(Damaged) as caught:
        land(source, target, Terms(sha256=wanted))
    assert str(source) in str(caught.value)
    assert sha256(source)[:12] in str(caught.value)
    assert wanted[:12] in str(caught.value)
    assert left(target) == []


def test_a_single_flipped_bit_is_found(source: Path, target: Path) -> None:
    wanted = sha256(source)
    with source.open("r+b") as file:
        file.seek(BLOCK_BYTES + 17)
        byte = file.read(1)[0]
        file.seek(BLOCK_BYTES + 17)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(Damaged):
        land(source, target, Terms(sha256=wanted))
    assert left(target) == []


def test_an_old_target_stays_when_the_new_one_is_damaged(source: Path, target: Path) -> None:
    make(target, 10)
    old = target.read_bytes()
    with pytest.raises(Damaged):
        land(source, target, Terms(sha256="0" * 64))
    assert target.read_bytes() == old
    assert left(target) == ["model.gguf"]


def test_a_source_that_is_not_there_leaves_no_folder_behind(tmp_path: Path, target: Path) -> None:
    with pytest.raises(FileNotFoundError):
        land(tmp_path / "absent", target)
    assert not target.parent.exists()


def test_a_landing_that_is_halted_leaves_nothing(source: Path, target: Path) -> None:
    def stop() -> None:
        raise Halted("SIGTERM")

    with pytest.raises(Halted, match="SIGTERM"):
        land(source, target, meter=halting(stop))
    assert left(target) == []


def test_a_landing_can_be_halted_while_it_verifies(source: Path, target: Path) -> None:
    asked = 0

    def stop_late() -> None:
        nonlocal asked
        asked += 1
        # All bytes are there, the digest is not: that is when reach() was told the whole size.
        if meter.done_bytes == source.stat().st_size:
            raise Halted("late")

    meter = Meter(source.stat().st_size, halt=stop_late)
    with pytest.raises(Halted, match="late"):
        land(source, target, Terms(sha256=sha256(source)), meter=meter)
    assert asked
    assert left(target) == []


def test_progress_ends_at_the_whole_file(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.progress.REPORT_INTERVAL_S", 0.0)
    told: list[Progress] = []
    size = source.stat().st_size
    land(source, target, meter=Meter(size, told.append))
    assert (told[-1].done_bytes, told[-1].total_bytes) == (size, size)
    assert [p.done_bytes for p in told] == sorted(p.done_bytes for p in told)


@pytest.mark.parametrize("change", ["touch", "truncate", "append", "replace", "remove"])
def test_a_source_that_changes_meanwhile_is_noticed(change: str, source: Path, target: Path) -> None:
    done: list[str] = []

    def disturb() -> None:
        # The second time it is asked: the source was looked at, and is being read or about to be verified.
        done.append(change)
        if len(done) != 2:
            return
        if change == "touch":
            os.utime(source, ns=(1, 1))
        elif change == "truncate":
            os.truncate(source, 100)
        elif change == "append":
            with source.open("ab") as file:
                file.write(b"x")
        elif change == "replace":
            make(source.with_suffix(".new"), source.stat().st_size).replace(source)
        else:
            source.unlink()

    with pytest.raises(OSError, match=r"changed while it was read|ends at byte|No such file"):
        land(source, target, meter=halting(disturb))
    assert left(target) == []


def test_a_target_in_a_folder_that_cannot_be_made_is_an_os_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(OSError, match="plain"):
        land(source, tmp_path / "plain" / "model.gguf")


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no filesystem can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)  # noqa: S607 - the machine's own


def test_a_full_disk_is_found_before_the_first_byte_and_keeps_nothing(source: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 4 * MIB) as folder:
        free = os.statvfs(folder).f_bavail
        asked: list[int] = []
        meter = halting(lambda: asked.append(1))
        with pytest.raises(OSError, match="No space left") as caught:
            land(source, folder / "model.gguf", meter=meter)
        assert caught.value.errno == errno.ENOSPC
        assert len(asked) == 1
        assert os.statvfs(folder).f_bavail == free
        assert left(folder / "model.gguf") == []


def test_a_file_lands_in_memory_as_on_disk(source: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "memory", 32 * MIB) as folder:
        land(source, folder / "model.gguf", Terms(sha256=sha256(source)))
        assert (folder / "model.gguf").read_bytes() == source.read_bytes()


def test_two_landings_of_one_target_read_it_once(source: Path, target: Path) -> None:
    methods: list[str] = []
    threads = [threading.Thread(target=lambda: methods.append(land(source, target).method)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(methods)[1:] == [BEFORE] * 3 or sorted(methods)[:3] == [BEFORE] * 3
    assert len([m for m in methods if m != BEFORE]) == 1
    assert left(target) == ["model.gguf"]


def test_a_landing_that_does_not_pay_leaves_nothing(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than all readers take on at once: something is left to be given up.
    source = tmp_path / "large"
    with source.open("wb") as file:
        for _ in range(2 * FAR.readers):
            file.write(os.urandom(BLOCK_BYTES))
        file.flush()
        os.fsync(file.fileno())
    with source.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_share(source) > 0:
        pytest.skip("this filesystem does not let go of its pages")
    # As on a disk that writes slower than anything reads, looked at often.
    monkeypatch.setattr("worker.pace.MARGIN", 0.0)
    monkeypatch.setattr("worker.readers._PAUSE_S", 0.0005)
    with pytest.raises(Slower, match="reading in place"):
        land(source, target, Terms(probe_bytes=MIB))
    assert left(target) == []
