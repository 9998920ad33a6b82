"""Whole workers whose storage or server fails during the boot: they serve all the same, or end and say why."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from bench.latfuse import LatencyFuse
from tests.conftest import MODEL, StartWorker, Workers
from tests.fakes.hub_server import FakeHub
from tests.fakes.range_server import RangeServer
from worker.local.process import WorkerProcess, wait_for
from worker.manifest import CONFIG_TYPE, Manifest, path_of
from worker.names import ModelName
from worker.registration import MODEL_TYPE
from worker.store import Store
from worker.weights import ANSWER_LIMIT_S

if TYPE_CHECKING:
    from worker.local.queue import LocalQueue

MIB = 1 << 20
SIZE = 24 * MIB + 777
MIDDLE = 13 * MIB + 5
NAME = ModelName.parse("tiny:1b")
ASKED = {"prompt": "hi"}
LIMIT_S = 80.0


def register(models: Path) -> Path:
    """Put a model that is large enough to be landed into a store; return its blob."""
    store = Store(models)
    layers = (store.put(b'{"model_format":"gguf"}', CONFIG_TYPE), store.put(os.urandom(SIZE), MODEL_TYPE))
    store.publish(Manifest(NAME, layers))
    return layers[1].path(models)


class Volume(LatencyFuse):
    """A network volume whose store has the model; `blob` is its file as it is mounted, `backing` what is behind it."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.backing = folder / "backing"
        blob = register(self.backing / "ollama" / "models")
        super().__init__(program, self.backing, folder / "volume")
        self.models = self.mount / "ollama" / "models"
        self.blob = self.models / "blobs" / blob.name


@pytest.fixture
def volume(program: Path, tmp_path: Path) -> Iterator[Volume]:
    with Volume(program, tmp_path) as mounted:
        yield mounted


Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(start_worker: StartWorker, tmp_path: Path) -> Start:
    """Start a worker for the model, with a home of its own and nobody to ask but this machine."""

    def run(**settings: str) -> WorkerProcess:
        usual = {"home": tmp_path / "home", "model": "tiny:1b", "WORKER_SOURCES": "local,volume"}
        return start_worker(**{**usual, "OLLAMA_MODELS": str(tmp_path / "home" / "models"), **settings})

    return run


@pytest.fixture
def on_volume(start: Start, volume: Volume) -> Start:
    """Start a worker whose store is the volume's."""
    places = {"WORKER_VOLUME": str(volume.mount), "OLLAMA_MODELS": str(volume.models)}
    return lambda **settings: start(**places, **settings)


def named(worker: WorkerProcess, name: str) -> list[dict[str, object]]:
    return [record for record in worker.records if record["event"] == name]


def is_quiet(worker: WorkerProcess) -> bool:
    """Return whether the worker itself had no traceback; what its server logs is the server's."""
    return not [line for line in worker.lines if "Traceback" in line and "server.logged" not in line]


def assert_serves(worker: WorkerProcess, queue: LocalQueue) -> None:
    worker.wait_event("boot.ready", LIMIT_S)
    assert queue.wait(queue.submit(ASKED), LIMIT_S)["status"] == "COMPLETED"
    assert is_quiet(worker)


def failure(worker: WorkerProcess, exit_code: int) -> str:
    """Return the one line of a worker that has ended with `exit_code`."""
    assert worker.wait(LIMIT_S) == exit_code, worker.tail()
    (line,) = [line for line in worker.lines if line.startswith("worker: ")]
    assert is_quiet(worker)
    assert named(worker, "worker.stopped")[-1]["exit_code"] == exit_code
    return line


def read_by_server(worker: WorkerProcess, blob: Path) -> Path:
    """Return the file the server reads for a blob."""
    pid = named(worker, "server.spawned")[0]["pid"]
    return Path(psutil.Process(pid).environ()["OLLAMA_MODELS"], "blobs", blob.name).resolve()


def test_a_slow_volume_is_landed_and_how_far_it_is_is_told(
    on_volume: Start, volume: Volume, queue: LocalQueue, tmp_path: Path
) -> None:
    volume.set(rate_mb_s=8)
    worker = on_volume()
    assert_serves(worker, queue)
    assert named(worker, "landing.started")[0]["path"] == str(volume.blob)
    told = [record for record in named(worker, "weights.progressed") if record["source"] == "landing"]
    assert told[0]["done_bytes"] < told[-1]["done_bytes"] <= told[-1]["total_bytes"] == SIZE
    finished = worker.wait_event("landing.finished", LIMIT_S)
    assert finished["method"] in {"O_DIRECT, 4 readers", "O_DIRECT, 12 readers"}
    assert finished["size_bytes"] == SIZE
    copy = tmp_path / "home" / ".ollama" / "landed" / volume.blob.name
    assert read_by_server(worker, volume.blob) == copy == Path(finished["path"])
    assert copy.read_bytes() == (volume.backing / "ollama" / "models" / "blobs" / volume.blob.name).read_bytes()
    worker.stop()
    # What the server was shown goes with it; the copy stays for the next start.
    left = [path for path in (tmp_path / "home" / ".ollama").rglob("*") if not path.is_dir() or path.is_symlink()]
    assert left == [copy]
    volume.set(rate_mb_s=0)
    again = on_volume()
    assert again.wait_event("landing.finished", LIMIT_S)["method"] == "landed before"


@pytest.mark.parametrize("fault", ["read_only", "full"])
def test_a_volume_that_cannot_be_written_serves_the_model_it_has(
    fault: str, on_volume: Start, volume: Volume, queue: LocalQueue
) -> None:
    before = sorted(volume.backing.rglob("*"))
    volume.set(**{fault: 1})
    worker = on_volume()
    assert_serves(worker, queue)
    assert worker.wait_event("landing.finished", LIMIT_S)["size_bytes"] == SIZE
    worker.stop()
    if fault == "read_only":
        assert sorted(volume.backing.rglob("*")) == before
        assert any("cuda-cache is not writable" in line for line in worker.lines)


def test_a_volume_that_hangs_is_given_up_and_the_model_left_to_the_server(
    on_volume: Start, volume: Volume, queue: LocalQueue
) -> None:
    volume.set(hang_at=MIDDLE)
    worker = on_volume()
    assert_serves(worker, queue)
    finished = worker.wait_event("landing.finished", LIMIT_S)
    assert f"nothing moved for {ANSWER_LIMIT_S:g} s after" in finished["reason"]
    assert finished["path"] == str(volume.blob)
    assert read_by_server(worker, volume.blob) == volume.blob


def test_a_store_that_hangs_ends_the_boot_within_its_limit(start: Start, tmp_path: Path) -> None:
    # Reading this manifest waits for a writer that does not come, as on a volume that does not answer.
    manifest = path_of(tmp_path / "home" / "models", NAME)
    manifest.parent.mkdir(parents=True)
    os.mkfifo(manifest)
    began_s = time.monotonic()
    line = failure(start(), 12)
    assert f"{tmp_path}/home/models: no answer within {ANSWER_LIMIT_S:g} s" in line
    assert time.monotonic() - began_s >= ANSWER_LIMIT_S


def test_a_store_that_hangs_does_not_keep_a_signal_from_ending_the_boot(start: Start, tmp_path: Path) -> None:
    manifest = path_of(tmp_path / "home" / "models", NAME)
    manifest.parent.mkdir(parents=True)
    os.mkfifo(manifest)
    worker = start()
    worker.wait_event("weights.requested", LIMIT_S)
    began_s = time.monotonic()
    assert worker.stop(LIMIT_S) == 0
    assert time.monotonic() - began_s < ANSWER_LIMIT_S


def test_a_volume_that_vanishes_while_it_is_read_ends_the_boot_and_leaves_no_half(
    on_volume: Start, volume: Volume, tmp_path: Path
) -> None:
    volume.set(rate_mb_s=6)
    worker = on_volume()
    worker.wait_event("weights.progressed", LIMIT_S, source="landing")
    volume.vanish()
    assert "could not load model 'tiny:1b'" in failure(worker, 12)
    assert "it could not be landed: " in worker.wait_event("landing.finished", LIMIT_S)["reason"]
    assert list((tmp_path / "home" / ".ollama" / "landed").iterdir()) == []


def test_a_volume_that_is_gone_from_the_start_is_named(on_volume: Start, volume: Volume) -> None:
    volume.vanish()
    assert str(volume.models) in failure(on_volume(), 12)


def test_a_flipped_bit_on_a_volume_is_found_and_the_file_named(
    on_volume: Start, volume: Volume, tmp_path: Path
) -> None:
    volume.set(flip_at=MIDDLE)
    line = failure(on_volume(), 12)
    assert f"a file of the model is damaged: {volume.blob}: the bytes have sha256" in line
    assert "Remove that file" in line
    assert list((tmp_path / "home" / ".ollama" / "landed").iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "removed", "fifo"])
def test_a_blob_that_is_not_whole_is_no_model_and_named(start: Start, tmp_path: Path, damage: str) -> None:
    blob = register(tmp_path / "home" / "models")
    if damage == "truncated":
        os.truncate(blob, MIDDLE)
    else:
        blob.unlink()
    if damage == "fifo":
        os.mkfifo(blob)
    worker = start()
    assert "no source has 'tiny:1b'" in failure(worker, 12)
    reason = named(worker, "source.passed_over")[0]["reason"]
    assert f"sha256:{blob.name[7:19]}" in reason
    has = {"truncated": f"has {MIDDLE:,} of {SIZE:,} bytes", "removed": "is not in the store", "fifo": "has 0 of"}
    assert has[damage] in reason


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no filesystem can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607 - the machine's own


@pytest.mark.parametrize("is_full", [False, True], ids=["too-small", "full"])
def test_a_volume_without_room_for_a_download_is_named_before_the_first_byte(
    start: Start,
    small_disk: Path,
    is_full: bool,  # noqa: FBT001 - a table's column
) -> None:
    pytest.importorskip("huggingface_hub")
    if is_full:
        with contextlib.suppress(OSError), (small_disk / "filler").open("wb") as file:
            while file.write(bytes(MIB)):
                file.flush()
    with RangeServer(FakeHub({"org/repo": {"M-Q8_0.gguf": bytes(SIZE)}}).app) as hub:
        asked = {"HF_MODEL": "org/repo", "HF_ENDPOINT": hub.url, "WORKER_SOURCES": "hub"}
        line = failure(start(OLLAMA_MODELS=str(small_disk / "models"), **asked), 12)
        assert hub.sent_bytes < MIB
    assert ("No space left on device" if is_full else "0.03 GB are needed") in line
    assert str(small_disk / "models") in line


def test_a_runner_that_is_killed_while_it_loads_is_the_reason(start_worker: StartWorker) -> None:
    worker = start_worker(real=True, model=MODEL)
    server = psutil.Process(worker.wait_event("server.spawned", LIMIT_S)["pid"])
    worker.wait_event("load.started", LIMIT_S)
    # As the kernel does it when memory runs out.
    assert wait_for(lambda: server.children(recursive=True) != [], LIMIT_S)
    for child in server.children(recursive=True):
        child.kill()
    line = failure(worker, 12)
    assert f"the server could not load model '{MODEL}'" in line
    assert "too large for this machine" in line


def test_a_server_that_is_killed_while_it_loads_takes_everything_with_it(
    start_worker: StartWorker, workers: Workers
) -> None:
    worker = start_worker(FAKE_LOAD_S="60", FAKE_CHILD="1")
    worker.wait_event("load.started", LIMIT_S)
    os.kill(worker.wait_event("server.spawned", LIMIT_S)["pid"], signal.SIGKILL)
    assert "the server was killed by signal 9" in failure(worker, 13)
    assert workers.marked.are_gone()


def test_a_load_may_be_silent_for_longer_than_any_other_limit(start_worker: StartWorker, queue: LocalQueue) -> None:
    limits = {"WORKER_SERVER_TIMEOUT_S": "3", "WORKER_STALL_TIMEOUT_S": "1", "WORKER_WEIGHTS_TIMEOUT_S": "1"}
    worker = start_worker(FAKE_LOAD_S="6", **limits)
    assert_serves(worker, queue)
    began, ended = (worker.wait_event(f"load.{what}", LIMIT_S) for what in ("started", "finished"))
    assert (ended["at_ns"] - began["at_ns"]) / 1e9 >= 6
    logged = [record for record in named(worker, "server.logged") if began["seq"] < record["seq"] < ended["seq"]]
    # What it said before the load may be read after that has begun.
    assert [record for record in logged if "Listening on" not in record["line"]] == []
