"""A container that cannot serve: it ends by itself, with its error's exit code and one line that says what to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.image.bases import ROOT
from tests.image.conftest import Run
from worker.errors import BootError, ConfigInvalid, GpuUnusable, WeightsUnavailable

pytestmark = pytest.mark.timeout(300)


def refusal(run: Run, kind: type[BootError], *options: str, **environ: str) -> str:
    """Return the one line a container printed before it ended with the exit code of `kind`."""
    with run(*options, **environ) as container:
        assert container.end(120.0) == kind.exit_code, container.tail()
        spoken = [line for line in container.lines if line.startswith("worker: ")]
        assert len(spoken) == 1, container.tail()
        assert not [line for line in container.lines if "Traceback" in line]
        return spoken[0]


def test_a_model_nobody_has(run: Run) -> None:
    line = refusal(run, WeightsUnavailable, OLLAMA_MODEL="absent:1b")

    assert "'absent:1b'" in line
    assert "OLLAMA_MODEL" in line


def test_every_mistake_in_the_configuration_at_once(run: Run) -> None:
    line = refusal(run, ConfigInvalid, WORKER_ALOW_CPU="1", MAX_CONCURRENCY="many", WORKER_OPENAI_ERRORS="both")

    for expected in ("did you mean WORKER_ALLOW_CPU?", "MAX_CONCURRENCY", "WORKER_OPENAI_ERRORS"):
        assert expected in line


def test_a_gpu_endpoint_without_a_gpu(run: Run) -> None:
    line = refusal(run, GpuUnusable, WORKER_ALLOW_CPU="0")

    assert "no NVIDIA device is visible" in line
    assert "docker run --gpus all" in line


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a driver's library that reports the GPU of FAKE_NVML_DEVICES."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in driver library")
    directory = tmp_path_factory.mktemp("driver")
    source = ROOT / "tests/fakes/fakenvml.c"
    target = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
    return directory


def test_a_gpu_the_library_has_no_code_for(run: Run, driver: Path) -> None:
    line = refusal(
        run,
        GpuUnusable,
        f"--volume={driver}:/usr/local/nvidia/lib:ro",
        WORKER_ALLOW_CPU="0",
        FAKE_NVML_DEVICES="Tesla T4,7.5,15360",
    )

    assert "7.5" in line
    assert "cuda_v12" in line
