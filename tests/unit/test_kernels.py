"""Compiled kernels: what is done with them by mode and verdict, and that they are kept once, after the first job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import cuda_library
from worker import nvml
from worker.choice import Choice
from worker.environment import BACKEND_FILE
from worker.events import JobFailed, JobFinished
from worker.kernels import VARIABLE, Kernels
from worker.local.process import ROOT, wait_for
from worker.verdict import Outcome

if TYPE_CHECKING:
    from tests.conftest import Written

LIMIT_S = 60.0
JIT = Choice("cuda_v12", "jit", "only PTX", "cuda_v13", {})
FINISHED = JobFinished("J", 1, 2, 3, 4, 5.0, 6.0)
SMI = f"{ROOT}/tests/fakes:/usr/bin:/bin"


@pytest.fixture(autouse=True)
def _devices_are_told_by_the_fake_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_LIBRARY", "libnvidia-ml-absent.so.1")


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    backend = tmp_path / "lib" / "ollama" / "cuda_v12"
    backend.mkdir(parents=True)
    (backend / BACKEND_FILE).write_bytes(cuda_library.library([cuda_library.ptx("80")]))
    return backend.parent


MakeKernels = Callable[..., Kernels]


@pytest.fixture
def make(tmp_path: Path, libraries: Path, written: Written) -> MakeKernels:
    """Make the kernels of a worker called `name`; capitals are its environment."""

    def kernels(mode: str = "mirror", name: str = "one", **environ: str) -> Kernels:
        places = {"HOME": str(tmp_path / name), "WORKER_VOLUME": str(tmp_path / "volume"), "PATH": SMI}
        return Kernels({**places, "WORKER_JIT_CACHE": mode, **environ}, libraries, written.writer)

    return kernels


def compiled(tmp_path: Path, name: str = "one") -> Path:
    """Compile what the driver would."""
    local = tmp_path / name / ".ollama" / "cuda-cache"
    (local / "a").mkdir(parents=True, exist_ok=True)
    (local / "index").write_bytes(b"index")
    (local / "a" / "0123").write_bytes(b"kernel" * 900)
    return local


def persisted(written: Written) -> dict[str, Any]:
    assert wait_for(lambda: written.all("jit_cache.persisted") != [], LIMIT_S)
    return written.one("jit_cache.persisted")


def kept(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "volume").glob("jit-cache/*"))


@pytest.mark.parametrize(
    ("mode", "is_told"), [("", False), ("direct", False), (" mirror ", True), ("off", True), ("nonsense", False)]
)
def test_the_driver_is_sent_to_local_disk_unless_start_sh_chose_the_volume(
    mode: str, is_told: Any, make: MakeKernels, tmp_path: Path
) -> None:
    assert make(mode).variables() == ({VARIABLE: f"{tmp_path}/one/.ollama/cuda-cache"} if is_told else {})


@pytest.mark.parametrize("mode", ["direct", "mirror", "off", "nonsense"])
@pytest.mark.parametrize("outcome", ["native", "jit", "unknown", "unusable"])
def test_what_happens_before_the_load_follows_from_mode_and_verdict(
    outcome: Outcome, mode: str, make: MakeKernels, written: Written
) -> None:
    make(mode).make_ready(replace(JIT, outcome=outcome))
    told = [record["event"] for record in written.records]
    if outcome == "native":
        assert written.one("jit_cache.unneeded")["reason"] == "cuda_v12 has native code for every device here"
        assert told == ["jit_cache.unneeded"]
    elif mode == "mirror":
        assert told == ["hydrate.started", "hydrate.finished"]
        assert written.one("hydrate.finished")["reason"].startswith("no worker has kept kernels")
    else:
        assert told == []


def test_without_a_verdict_or_without_backends_there_is_nothing_to_do(
    make: MakeKernels, written: Written, tmp_path: Path
) -> None:
    make().make_ready(None)
    Kernels({"WORKER_JIT_CACHE": "mirror", "HOME": str(tmp_path)}, None, written.writer).make_ready(JIT)
    assert written.records == []


@pytest.mark.parametrize(
    ("environ", "backend", "reason"),
    [
        ({"PATH": ""}, "cuda_v12", "no device is visible"),
        ({"SMI_CC": "8.9", "CUDA_VISIBLE_DEVICES": ""}, "cuda_v12", "no device is visible"),
        ({}, "cuda_v11", f"{BACKEND_FILE}: No such file or directory"),
        ({}, "", f"{BACKEND_FILE}: No such file or directory"),
    ],
)
def test_kernels_of_nobody_knows_what_are_neither_brought_nor_kept(
    environ: dict[str, str], backend: str, reason: str, make: MakeKernels, written: Written, tmp_path: Path
) -> None:
    kernels = make(**environ)
    kernels.make_ready(replace(JIT, backend=backend))
    finished = written.one("hydrate.finished")
    assert (finished["done"], finished["reason"]) == (False, reason)
    compiled(tmp_path)
    kernels.keep_after_first_job()
    assert written.writer._listeners == []


def test_what_one_worker_compiled_for_its_first_job_the_next_has_before_its_load(
    make: MakeKernels, written: Written, tmp_path: Path
) -> None:
    first = make()
    first.make_ready(JIT)
    compiled(tmp_path)
    first.keep_after_first_job()
    written.writer.write(FINISHED)
    told = persisted(written)
    assert (told["done"], told["files"], told["size_bytes"]) == (True, 2, 5405)
    (name,) = kept(tmp_path)
    assert name.startswith("sm8.9-driver565.57.01-cuda_v12-")
    make(name="two").make_ready(JIT)
    finished = written.all("hydrate.finished")[1]
    assert (finished["done"], finished["files"]) == (True, 2)
    assert (tmp_path / "two" / ".ollama" / "cuda-cache" / "a" / "0123").read_bytes() == b"kernel" * 900


def test_the_kernels_of_an_image_are_used_where_the_volume_has_none(
    make: MakeKernels, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baking = make(name="baking")
    baking.make_ready(JIT)
    compiled(tmp_path, "baking")
    baking.keep_after_first_job()
    written.writer.write(FINISHED)
    persisted(written)
    (tmp_path / "volume" / "jit-cache").rename(tmp_path / "baked")
    monkeypatch.setattr("worker.kernels.BAKED_KERNELS", tmp_path / "baked")
    make(name="two").make_ready(JIT)
    finished = written.all("hydrate.finished")[-1]
    assert (finished["done"], finished["files"]) == (True, 2)
    # Without any, the reason is the volume's.
    monkeypatch.setattr("worker.kernels.BAKED_KERNELS", tmp_path / "nowhere")
    make(name="three").make_ready(JIT)
    assert written.all("hydrate.finished")[-1]["reason"].startswith("no worker has kept kernels")


def test_they_are_kept_exactly_once_however_many_jobs_finish_at_once(
    make: MakeKernels, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = make()
    kernels.make_ready(JIT)
    compiled(tmp_path)
    calls: list[str] = []
    real = kernels._persist
    monkeypatch.setattr(kernels, "_persist", lambda: (calls.append("persist"), real()))
    kernels.keep_after_first_job()
    written.writer.write(JobFailed("J", "internal", 500, "no answer, no kernels"))
    assert calls == []
    threads = [threading.Thread(target=written.writer.write, args=(FINISHED,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    persisted(written)
    written.writer.write(FINISHED)
    assert wait_for(lambda: all(thread.name != "jit-cache" for thread in threading.enumerate()), LIMIT_S)
    assert calls == ["persist"]
    assert len(kept(tmp_path)) == 1


def test_a_job_that_was_over_before_anybody_listened_counts(
    make: MakeKernels, written: Written, tmp_path: Path
) -> None:
    kernels = make()
    kernels.make_ready(JIT)
    compiled(tmp_path)
    written.writer.write(FINISHED)
    kernels.keep_after_first_job()
    assert persisted(written)["done"]


@pytest.mark.parametrize("mode", ["direct", "off"])
def test_in_other_modes_nothing_is_packed(mode: str, make: MakeKernels, written: Written, tmp_path: Path) -> None:
    kernels = make(mode)
    kernels.make_ready(JIT)
    compiled(tmp_path)
    kernels.keep_after_first_job()
    assert written.writer._listeners == []
    assert kept(tmp_path) == []


def test_a_volume_that_takes_nothing_is_told_and_harms_no_job(
    make: MakeKernels, written: Written, tmp_path: Path
) -> None:
    (tmp_path / "volume").write_text("a file where the volume should be")
    kernels = make()
    kernels.make_ready(JIT)
    compiled(tmp_path)
    kernels.keep_after_first_job()
    written.writer.write(FINISHED)
    told = persisted(written)
    assert (told["done"], told["files"]) == (False, 0)
    assert told["reason"].startswith("the kernels cannot be kept: ")
    assert written.one("hydrate.finished")["reason"].startswith("the kept kernels cannot be read: ")
