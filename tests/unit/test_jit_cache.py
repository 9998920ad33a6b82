"""Compiled kernels brought in and kept: for the right device, whole, once, and never at the price of a boot."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker import artifact
from worker.jit_cache import JitCache, Key
from worker.lease import Lease

ROOT = Path(__file__).parents[2]
KEY = Key("9.0", "580.65.06", "v0.32.1-cuda_v13")
KERNELS = {"index": b"i" * 100, "a/0123": os.urandom(5000)}
# Fills a cache of its own and keeps it, at the same moment as others do.
PERSISTER = """
import sys
from pathlib import Path
from worker.jit_cache import JitCache, Key
local = Path(sys.argv[1])
local.mkdir()
for number in range(50):
    (local / f"kernel{number}").write_bytes(sys.argv[1].encode() * 5000)
print("ready", flush=True)
sys.stdin.readline()
print(JitCache(local, Path(sys.argv[2]), Key("9.0", "580", "b1")).persist().reason or "kept", flush=True)
"""


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Worker:
    """One worker's view: its own local cache, the shared folder of all."""

    def __init__(self, tmp_path: Path, name: str, key: Key = KEY) -> None:
        self.local = tmp_path / name
        self.shared = tmp_path / "shared"
        self.packed = self.shared / f"{key.name}.tar"
        self.cache = JitCache(self.local, self.shared, key)

    def compile(self, **kernels: bytes) -> Worker:
        fill(self.local, kernels or KERNELS)
        return self


@pytest.fixture
def first(tmp_path: Path) -> Worker:
    return Worker(tmp_path, "first").compile()


@pytest.fixture
def second(tmp_path: Path) -> Worker:
    return Worker(tmp_path, "second")


def shared(worker: Worker) -> list[str]:
    return sorted(path.name for path in worker.shared.iterdir()) if worker.shared.exists() else []


def test_what_one_worker_compiled_the_next_has(first: Worker, second: Worker) -> None:
    kept = first.cache.persist()
    assert (kept.done, kept.reason, kept.files, kept.size_bytes) == (True, "", 2, 5100)
    got = second.cache.hydrate()
    assert (got.done, got.files, got.size_bytes) == (True, 2, 5100)
    assert content(second.local) == KERNELS
    assert shared(first) == [f"{KEY.name}.tar"]


def test_without_kept_kernels_nothing_is_brought_in(second: Worker) -> None:
    outcome = second.cache.hydrate()
    assert not outcome.done
    assert outcome.reason == "no worker has kept kernels for this device, driver and engine yet"
    assert not second.local.exists()


@pytest.mark.parametrize(
    "other", [Key("8.9", KEY.driver, KEY.engine), Key("9.0", "550.1", KEY.engine), Key("9.0", KEY.driver, "v1")]
)
def test_another_device_driver_or_engine_has_kernels_of_its_own(other: Key, first: Worker, tmp_path: Path) -> None:
    first.cache.persist()
    assert not Worker(tmp_path, "other", other).cache.hydrate().done


def test_a_keys_name_is_readable_safe_and_unique() -> None:
    assert KEY.name.startswith("sm9.0-driver580.65.06-v0.32.1-cuda_v13-")
    wild = Key("9.0/../..", "5 8\0", "b" * 500)
    assert "/" not in wild.name
    assert len(wild.name) < 140
    assert len({Key("9.0", "5", "a-b").name, Key("9.0", "5-a", "b").name, Key("9.0", "5", "a b").name}) == 3


def test_kernels_made_for_another_key_under_this_name_are_removed(first: Worker, second: Worker) -> None:
    artifact.pack(first.local, first.packed, {"driver": "other"})
    outcome = second.cache.hydrate()
    assert outcome.reason == (
        "the kept kernels are unusable: it was made for another device, driver or engine; they are removed"
    )
    assert shared(second) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "garbage", "empty"])
def test_damaged_kernels_are_removed_with_one_line_and_replaced(damage: str, first: Worker, second: Worker) -> None:
    first.cache.persist()
    raw = bytearray(first.packed.read_bytes())
    # The middle of a kernel.
    raw[6000] ^= 1
    changed = {"cut": raw[:4000], "flip": raw, "garbage": b"x" * 3000, "empty": b""}
    first.packed.write_bytes(changed[damage])
    outcome = second.cache.hydrate()
    assert not outcome.done
    assert outcome.reason.startswith("the kept kernels are unusable: ")
    assert outcome.reason.endswith("; they are removed")
    assert "\n" not in outcome.reason
    assert not second.local.exists()
    assert second.compile().cache.persist().done
    assert Worker(second.local.parent, "third").cache.hydrate().done


def test_damage_another_worker_has_mended_meanwhile_is_left_alone(
    first: Worker, second: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first.cache.persist()
    good = first.packed.read_bytes()
    first.packed.write_bytes(b"bad")
    real = artifact.inspect

    def inspect(source: Path) -> object:
        try:
            return real(source)
        finally:
            fill(first.shared, {"new": good})
            (first.shared / "new").replace(first.packed)

    monkeypatch.setattr(artifact, "inspect", inspect)
    assert "another worker has replaced them" in second.cache.hydrate().reason
    assert first.packed.read_bytes() == good


def test_damage_that_cannot_be_removed_is_said(first: Worker, second: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(first.shared, {first.packed.name: b"bad"})

    def unlink(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", unlink)
    assert second.cache.hydrate().reason.endswith("; they cannot be removed: Permission denied")


def test_nothing_compiled_is_nothing_kept(second: Worker) -> None:
    assert second.cache.persist().reason == "the driver compiled nothing"
    second.local.mkdir()
    assert second.cache.persist().reason == "the driver compiled nothing"
    assert shared(second) == []


def test_what_was_brought_in_is_not_written_back(first: Worker, second: Worker) -> None:
    first.cache.persist()
    second.cache.hydrate()
    before = second.packed.stat().st_ino
    assert second.cache.persist().reason == "the driver compiled nothing new"
    assert first.cache.persist().reason == "the driver compiled nothing new"
    assert second.packed.stat().st_ino == before


def test_what_another_worker_has_kept_already_is_not_written_again(first: Worker, second: Worker) -> None:
    first.cache.persist()
    assert second.compile().cache.persist().reason == "the driver compiled nothing new"


def test_more_kernels_replace_fewer(first: Worker, second: Worker) -> None:
    first.cache.persist()
    second.cache.hydrate()
    assert second.compile(more=b"m").cache.persist().files == 3


def test_while_somebody_keeps_kernels_others_do_not_wait(first: Worker) -> None:
    lease = Lease.acquire(first.shared / f"{KEY.name}.lease", term_s=60)
    assert lease is not None
    assert first.cache.persist().reason == "another worker is keeping them now"


def test_a_worker_that_lost_its_right_while_packing_publishes_nothing(
    first: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = artifact.take

    def take(*arguments: object) -> object:
        (first.shared / f"{KEY.name}.lease").unlink()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(artifact, "take", take)
    assert first.cache.persist().reason.startswith("the right to keep them was lost: ")
    assert shared(first) == []


def test_a_driver_that_still_compiles_is_left_alone(first: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    real = artifact.take

    def take(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        first.compile(index=b"changed")
        return found

    monkeypatch.setattr(artifact, "take", take)
    assert first.cache.persist().reason == "the driver is still compiling: index changed while it was packed"
    assert shared(first) == []


def test_what_killed_workers_left_is_swept_away(first: Worker, second: Worker) -> None:
    fill(first.shared, {f".{first.packed.name}.0123.partial": b"half"})
    fill(second.local.parent / ".second.0123.partial", {"half": b"h"})
    first.cache.persist()
    second.cache.hydrate()
    assert shared(first) == [f"{KEY.name}.tar"]
    assert not (second.local.parent / ".second.0123.partial").exists()


def test_a_shared_folder_that_is_a_file_stops_nothing(first: Worker) -> None:
    first.shared.write_text("not a folder")
    assert first.cache.hydrate().reason == "the kept kernels cannot be read: Not a directory"
    assert first.cache.persist().reason.startswith("the kernels cannot be kept: ")


def test_two_workers_that_keep_kernels_at_once_leave_one_whole_artifact(tmp_path: Path) -> None:
    shared_folder = tmp_path / "shared"
    with contextlib.ExitStack() as stack:
        processes = []
        for name in ("one", "two", "three"):
            command = [sys.executable, "-c", PERSISTER, str(tmp_path / name), str(shared_folder)]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        said = [process.communicate("go\n", timeout=60)[0].strip() for process in processes]
    assert "kept" in said
    assert set(said) <= {"kept", "another worker is keeping them now"}
    (packed,) = shared_folder.iterdir()
    artifact.install(packed, tmp_path / "out")
    assert content(tmp_path / "out") in [content(tmp_path / name) for name in ("one", "two", "three")]


def test_kernels_that_come_too_late_are_not_installed(
    first: Worker, second: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading  # noqa: PLC0415 - only this test waits for threads

    first.cache.persist()
    release = threading.Event()
    real = artifact.inspect

    def slow(source: Path) -> object:
        release.wait(30)
        return real(source)

    monkeypatch.setattr(artifact, "inspect", slow)
    outcome = second.cache.hydrate(limit_s=0.2)
    assert outcome.reason == "the kept kernels cannot be read: the shared folder: no answer within 0.2 s"
    release.set()
    for thread in threading.enumerate():
        if thread.name == "bounded":
            thread.join(30)
    assert not second.local.exists()
