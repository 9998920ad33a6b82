"""A model on a volume that is slow, hangs, vanishes, lies or is full: what the worker makes of it, what it leaves."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.latfuse import OFF, LatencyFuse
from worker import storage
from worker.arrival import bring
from worker.bounded import Stalled
from worker.jit_cache import JitCache, Key
from worker.known_digest import Damaged
from worker.landing import Terms, land
from worker.lease import Lease
from worker.local.process import wait_for
from worker.progress import Halted, Meter
from worker.readers import Method

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
SIZE = 24 * MIB + 777
MIDDLE = 13 * MIB + 5
HASTY = Terms(stall_s=1.5)
LIMIT_S = 60.0

MakeVolume = Callable[..., "Volume"]


class Volume(LatencyFuse):
    """A mounted volume with one model on it."""

    def __init__(self, program: Path, folder: Path, **settings: int) -> None:
        self.backing = folder / "backing"
        self.backing.mkdir(parents=True)
        self.content = os.urandom(SIZE)
        (self.backing / "model.gguf").write_bytes(self.content)
        super().__init__(program, self.backing, folder / "mount", **settings)

    @property
    def model(self) -> Path:
        return self.mount / "model.gguf"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@pytest.fixture
def make_volume(program: Path, tmp_path: Path) -> Iterator[MakeVolume]:
    with ExitStack() as stack:
        made: list[Volume] = []

        def make(**settings: int) -> Volume:
            folder = tmp_path / f"volume{len(made)}"
            folder.mkdir()
            made.append(stack.enter_context(Volume(program, folder, **settings)))
            return made[-1]

        yield make
    # Threads that hung in a read come back when the volume is gone; none may outlive the test.
    assert wait_for(lambda: threads_left() == [], LIMIT_S), threads_left()


@pytest.fixture
def volume(make_volume: MakeVolume) -> Volume:
    return make_volume()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "landed"


def threads_left() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("landing-", "digest", "bounded"))]


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def once(condition: Callable[[], bool], action: Callable[[], None]) -> Callable[[], None]:
    """Return a function to be called often: it acts once, as soon as the condition holds."""
    done: list[bool] = []

    def call() -> None:
        if not done and condition():
            done.append(True)
            action()

    return call


def meter_that(action: Callable[[], None], after_bytes: int = 1) -> Meter:
    """A meter that acts once, when `after_bytes` have been moved."""
    meter = Meter(SIZE, halt=once(lambda: meter.done_bytes >= after_bytes, action))
    return meter


def assert_stays(volume: Volume, folder: Path, reason: str, **options: Meter) -> None:
    arrived = bring(volume.model, [folder], HASTY, **options)
    assert arrived.path == volume.model
    assert reason in arrived.reason
    assert left(folder) == []


def test_a_volume_counts_as_distant_and_a_slow_one_is_read_in_large_pieces_at_once(
    make_volume: MakeVolume, folder: Path
) -> None:
    slow = make_volume(latency_us=20_000)
    assert storage.place(slow.model).distant
    arrived = bring(slow.model, [folder], Terms(sha256=slow.sha256))
    requests, size_bytes, most_at_once = slow.stats()
    assert arrived.path.read_bytes() == slow.content
    assert arrived.landed is not None
    assert arrived.landed.method == "O_DIRECT, 12 readers"
    assert size_bytes <= SIZE + 2 * MIB
    assert size_bytes / requests > 512 * 1024
    assert most_at_once >= 4
    assert left(folder) == ["model.gguf"]


def test_a_model_in_the_page_cache_stays_there(volume: Volume, folder: Path) -> None:
    volume.model.read_bytes()
    volume.stats()
    arrived = bring(volume.model, [folder])
    assert arrived.path == volume.model
    assert arrived.reason.endswith("% of it is in the page cache already")
    assert volume.stats()[0] == 0


def test_what_is_cached_of_a_model_is_not_read_again(volume: Volume, folder: Path) -> None:
    with volume.model.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(12 * MIB)
        volume.stats()
        bring(volume.model, [folder])
    assert (folder / "model.gguf").read_bytes() == volume.content
    assert 12 * MIB <= volume.stats()[1] < 14 * MIB


def test_a_volume_without_direct_reading_is_read_by_one(make_volume: MakeVolume, folder: Path) -> None:
    plain = make_volume(refuse_direct=1)
    arrived = bring(plain.model, [folder], Terms(sha256=plain.sha256))
    assert arrived.landed is not None
    assert arrived.landed.method == "buffered, 1 reader"


def test_a_volume_that_hangs_in_the_middle_is_given_up_and_leaves_nothing(volume: Volume, folder: Path) -> None:
    volume.set(hang_at=MIDDLE)
    with pytest.raises(Stalled, match=r"nothing moved for 1\.5 s after [\d,]+ of 25,166,601 bytes"):
        land(volume.model, folder / "model.gguf", HASTY)
    assert left(folder) == []
    # The hanging readers come back later: that must change nothing.
    volume.set(hang_at=OFF)
    assert wait_for(lambda: threads_left() == [], LIMIT_S)
    assert left(folder) == []


def test_after_a_volume_hung_its_model_is_read_in_place(volume: Volume, folder: Path) -> None:
    volume.set(hang_at=MIDDLE)
    assert_stays(volume, folder, "nothing moved for 1.5 s")
    volume.set(hang_at=OFF)
    assert volume.model.read_bytes() == volume.content


def test_a_volume_that_hangs_from_the_first_byte_is_given_up_as_fast(volume: Volume, folder: Path) -> None:
    volume.set(hang_at=0)
    began_s = time.monotonic()
    assert_stays(volume, folder, f"{volume.model}: no answer within 1.5 s")
    assert time.monotonic() - began_s < LIMIT_S
    volume.set(hang_at=OFF)


def test_a_volume_that_is_only_slow_is_not_taken_for_one_that_hangs(
    make_volume: MakeVolume, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is asked for at once takes less than the limit, the whole much longer.
    monkeypatch.setattr("worker.landing.first_method", lambda _: Method(2, direct=True))
    slow = make_volume(rate_mb_s=6)
    arrived = bring(slow.model, [folder], HASTY)
    assert arrived.landed is not None
    assert arrived.landed.took_s > HASTY.stall_s


def test_a_volume_that_vanishes_while_it_is_read_leaves_nothing(make_volume: MakeVolume, folder: Path) -> None:
    slow = make_volume(rate_mb_s=20)
    assert_stays(slow, folder, "it could not be landed: ", meter=meter_that(slow.vanish))


def test_a_volume_that_is_gone_is_named(volume: Volume, folder: Path) -> None:
    volume.vanish()
    assert_stays(volume, folder, str(volume.mount))


def test_an_error_of_the_volume_is_passed_on_in_words(volume: Volume, folder: Path) -> None:
    volume.set(error_at=MIDDLE)
    with pytest.raises(OSError, match="Input/output error"):
        land(volume.model, folder / "model.gguf")
    assert_stays(volume, folder, "it could not be landed: [Errno 5]")


def test_a_model_that_is_shorter_than_its_size_says_is_named(volume: Volume, folder: Path) -> None:
    volume.set(end_at=MIDDLE)
    with pytest.raises(OSError, match=r"it ends at byte [\d,]+ of 25,166,601.*model\.gguf"):
        land(volume.model, folder / "model.gguf")
    assert left(folder) == []


def test_a_blob_that_was_truncated_is_found_by_its_digest(volume: Volume, folder: Path) -> None:
    os.truncate(volume.backing / "model.gguf", MIDDLE)
    with pytest.raises(Damaged, match=r"model\.gguf: the bytes have sha256"):
        bring(volume.model, [folder], Terms(sha256=volume.sha256))
    assert left(folder) == []


def test_a_flipped_bit_is_found_where_the_digest_is_known_and_the_file_named(volume: Volume, folder: Path) -> None:
    volume.set(flip_at=MIDDLE)
    with pytest.raises(Damaged, match=rf"{volume.model}: .* should have {volume.sha256[:12]}"):
        bring(volume.model, [folder], Terms(sha256=volume.sha256))
    assert left(folder) == []


def test_a_landing_can_be_stopped_at_any_time(make_volume: MakeVolume, folder: Path) -> None:
    slow = make_volume(rate_mb_s=10)

    def stop() -> None:
        raise Halted("SIGTERM")

    with pytest.raises(Halted):
        bring(slow.model, [folder], meter=meter_that(stop))
    assert left(folder) == []


def test_a_disk_that_fills_up_while_it_is_written_keeps_nothing(make_volume: MakeVolume) -> None:
    # The target's filesystem cannot reserve room, so that it is full only when it is written to.
    slow, target = make_volume(rate_mb_s=20), make_volume()
    (target.mount / "model.gguf").unlink()
    with pytest.raises(OSError, match="No space left"):
        land(slow.model, target.mount / "model.gguf", meter=meter_that(lambda: target.set(full=1)))
    # FUSE removes what was open a moment after it is closed.
    assert wait_for(lambda: left(target.backing) == [], LIMIT_S)


def test_a_disk_that_cannot_be_written_leaves_the_model_where_it_is(make_volume: MakeVolume) -> None:
    volume, target = make_volume(), make_volume(read_only=1)
    with pytest.raises(OSError, match="Read-only"):
        land(volume.model, target.mount / "copy.gguf")
    assert left(target.backing) == ["model.gguf"]


def test_a_read_only_volume_is_as_good_as_any_to_read_from(make_volume: MakeVolume, folder: Path) -> None:
    volume = make_volume(read_only=1)
    assert bring(volume.model, [folder], Terms(sha256=volume.sha256)).landed is not None


LANDING = """
import sys
from pathlib import Path
from worker.landing import land
from worker.progress import Meter
land(Path(sys.argv[1]), Path(sys.argv[2]), meter=Meter(1, lambda told: print(told, flush=True)))
"""


def test_what_a_killed_landing_leaves_is_invisible_and_gone_after_the_next(
    make_volume: MakeVolume, folder: Path
) -> None:
    slow = make_volume(rate_mb_s=8)
    command = [sys.executable, "-c", LANDING, str(slow.model), str(folder / "model.gguf")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "MB" in process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert left(folder) == [".model.gguf.partial"]
    slow.set(rate_mb_s=0)
    arrived = bring(slow.model, [folder], Terms(sha256=slow.sha256))
    assert arrived.path.read_bytes() == slow.content
    assert left(folder) == ["model.gguf"]


KEY = Key("9.0", "580.65.06", "b1")


def jit_cache(tmp_path: Path, volume: Volume, name: str = "local") -> JitCache:
    local = tmp_path / name
    local.mkdir(exist_ok=True)
    (local / "index").write_bytes(b"kernels" * 5000)
    return JitCache(local, volume.mount / "jit", KEY)


def test_kernels_are_kept_on_a_volume_and_come_back(volume: Volume, tmp_path: Path) -> None:
    assert jit_cache(tmp_path, volume).persist().done
    other = JitCache(tmp_path / "other", volume.mount / "jit", KEY)
    assert other.hydrate().files == 1
    assert (tmp_path / "other" / "index").read_bytes() == b"kernels" * 5000


@pytest.mark.parametrize(
    ("setting", "reason"), [("full", "No space left on device"), ("read_only", "Read-only file system")]
)
def test_a_volume_that_cannot_be_written_keeps_no_kernels_and_says_so(
    setting: str, reason: str, volume: Volume, tmp_path: Path
) -> None:
    volume.set(**{setting: 1})
    assert jit_cache(tmp_path, volume).persist().reason == f"the kernels cannot be kept: {reason}"
    files = [path.name for path in volume.backing.rglob("*") if path.is_file()]
    assert files == ["model.gguf"]


def test_a_volume_that_vanished_neither_gives_nor_keeps_kernels(volume: Volume, tmp_path: Path) -> None:
    cache = jit_cache(tmp_path, volume)
    volume.vanish()
    assert "the kept kernels cannot be read" in cache.hydrate().reason
    assert "the kernels cannot be kept" in cache.persist().reason


def test_kernels_on_a_volume_that_hangs_are_not_waited_for_and_do_not_come_late(volume: Volume, tmp_path: Path) -> None:
    assert jit_cache(tmp_path, volume).persist().done
    packed = next((volume.backing / "jit").glob("*.tar"))
    # Not what the page cache of the mount still knows.
    os.utime(packed, ns=(1, 1))
    with (volume.mount / "jit" / packed.name).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    volume.set(hang_at=0)
    late = tmp_path / "late"
    outcome = JitCache(late, volume.mount / "jit", KEY).hydrate(limit_s=1.0)
    assert not outcome.done
    assert "no answer within 1 s" in outcome.reason
    volume.set(hang_at=OFF)
    assert wait_for(lambda: threads_left() == [], LIMIT_S)
    assert not late.exists()


def test_a_lease_on_a_volume_that_vanished_is_an_os_error(volume: Volume) -> None:
    lease = Lease.acquire(volume.mount / "lease", term_s=60)
    assert lease is not None
    volume.vanish()
    with pytest.raises(OSError, match=r"not connected|connection abort"):
        lease.check()
    lease.release()
    with pytest.raises(OSError, match=r"not connected|connection abort"):
        Lease.acquire(volume.mount / "other", term_s=60)
