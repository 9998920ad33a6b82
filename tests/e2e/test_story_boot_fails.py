"""A worker that cannot serve ends with its exit code and one line that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.local.process import ROOT, WorkerProcess

if TYPE_CHECKING:
    from tests.conftest import StartWorker
    from worker.local.queue import LocalQueue

LIMIT_S = 60.0
FAILURES = {
    "bad-configuration": (
        10,
        {"OLLAMA_NUM_PARALLEL": "none", "WORKER_LOAD_TIMEOUT_S": "-1", "WORKER_ALOW_CPU": "1"},
        ["OLLAMA_NUM_PARALLEL", "WORKER_LOAD_TIMEOUT_S", "WORKER_ALOW_CPU", "did you mean WORKER_ALLOW_CPU?"],
    ),
    "unknown-variable": (10, {"WORKER_VOLUM": "/x"}, ["WORKER_VOLUM", "did you mean WORKER_VOLUME?"]),
    "not-on-runpod": (10, {"RUNPOD_WEBHOOK_GET_JOB": ""}, ["this is not a Runpod worker", "make run"]),
    "bad-command": (10, {"WORKER_SERVER_COMMAND": "'half"}, ["WORKER_SERVER_COMMAND"]),
    "all-at-once": (10, {"WORKER_SERVER_COMMAND": "no-such-server", "MAX_CONCURRENCY": "x"}, ["MAX_CONCURRENCY"]),
    "no-gpu": (11, {"WORKER_ALLOW_CPU": "0", "FAKE_VRAM_SHARE": "0.25"}, ["only 25%", "WORKER_ALLOW_CPU=1"]),
    "no-model": (12, {"model": "absent:1b"}, ["absent:1b", "OLLAMA_MODEL"]),
    "unloadable": (12, {"FAKE_LOAD_ERROR": "unknown architecture"}, ["unknown architecture"]),
    "no-ollama": (
        13,
        {"WORKER_SERVER_COMMAND": "/bin/true serve"},
        ["exited with code 0", "It logged nothing, as no Ollama does", "OLLAMA_BIN"],
    ),
    "no-gguf": (12, {"model": str(ROOT / "README.md")}, ["': local: README.md is no GGUF file. Check the path"]),
    "no-url": (10, {"model": "http://127.0.0.1:1/x.gguf"}, ["of URLs only s3:// and Hugging Face's are understood"]),
    "no-hub": (
        12,
        {"HF_MODEL": "a/b", "HF_ENDPOINT": "foo"},
        ["HF_ENDPOINT=foo cannot be reached", "set it to a hub's"],
    ),
    "no-storage": (
        12,
        {"model": "s3://b/x.gguf", "AWS_ENDPOINT_URL_S3": "127.0.0.1:9"},
        [
            "127.0.0.1:9 cannot be reached (Connection refused)",
            "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL must be",
            "Check the URL, AWS_",
        ],
    ),
    "no-server": (13, {"WORKER_SERVER_COMMAND": "no-such-server"}, ["no-such-server: not found"]),
    "server-exits": (13, {"FAKE_NO_SUCH_KNOB": "1"}, ["exited with code 2", "has no knob 'no_such_knob'"]),
    "server-silent": (
        14,
        {"FAKE_NEVER_ANSWER": "1", "WORKER_SERVER_TIMEOUT_S": "0.5"},
        ["'server start' did not finish within 0.5 s"],
    ),
    "load-too-slow": (14, {"FAKE_LOAD_S": "60", "WORKER_LOAD_TIMEOUT_S": "0.5"}, ["'load'", "0.5 s"]),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_boot_failure_is_one_line_and_an_exit_code(start_worker: StartWorker, name: str) -> None:
    exit_code, settings, parts = FAILURES[name]
    worker = start_worker(**settings)
    assert worker.wait(LIMIT_S) == exit_code, worker.tail()
    (line,) = [line for line in worker.lines if line.startswith("worker: ")]
    for part in parts:
        assert part in line
    failed = worker.wait_event("boot.failed", LIMIT_S)
    assert (f"worker: {failed['message']}", failed["exit_code"]) == (line, exit_code)
    stopped = worker.wait_event("worker.stopped", LIMIT_S)
    assert (stopped["exit_code"], stopped["seq"]) == (exit_code, worker.records[-1]["seq"])
    assert not [line for line in worker.lines if "Traceback" in line]


def test_a_value_the_server_cannot_read_is_told_and_the_workers_own_is_used(start_worker: StartWorker) -> None:
    worker = start_worker(real=True, OLLAMA_CONTEXT_LENGTH="abc", OLLAMA_KEEP_ALIVE="5m", OLLAMA_LOAD_TIMEOUT="xx")
    # Without the worker's value the server would have taken one of its own and unloaded after minutes.
    assert worker.wait_event("load.finished", LIMIT_S)["context_length"] == 4096
    worker.wait_event("boot.ready", LIMIT_S)
    told = [record["text"] for record in worker.records if record["event"] == "setting.ignored"]
    assert told == [
        "OLLAMA_CONTEXT_LENGTH='abc' is ignored, because it is no whole number, as 8192: the worker sets 4096",
        "OLLAMA_LOAD_TIMEOUT='xx' is ignored, because it is no duration, as 30m or -1: the worker sets 30m",
    ]


def test_no_job_is_taken_by_a_worker_that_cannot_serve(start_worker: StartWorker, queue: LocalQueue) -> None:
    worker = start_worker(FAKE_LOAD_ERROR="broken")
    assert worker.wait(LIMIT_S) == 12
    assert queue.record.takes() == []
    assert queue.record.pings() == []


def test_a_volume_that_cannot_be_written_to_is_no_obstacle(start_worker: StartWorker, store_home: Path) -> None:
    worker = start_worker(WORKER_VOLUME="/dev/null/volume")
    worker.wait_event("boot.ready", LIMIT_S)
    (line,) = [line for line in worker.lines if line.startswith("start.sh: ")]
    assert line == (
        "start.sh: /dev/null/volume/cuda-cache is not writable: compiled kernels will not outlive this container"
    )
    assert store_home.exists()


Start = Callable[..., dict[str, str]]


@pytest.fixture
def environment_of(tmp_path: Path) -> Start:
    """Run start.sh with a program that tells its environment in the place of Python; return that environment."""
    teller = tmp_path / "teller"
    teller.write_text('#!/bin/sh\necho "ARGUMENTS=$*"\nenv\n')
    teller.chmod(0o755)

    def run(**settings: str) -> dict[str, str]:
        environ = {"PATH": os.environ["PATH"], "PYTHON": str(teller), "HOME": str(tmp_path / "home"), **settings}
        done = subprocess.run(
            [ROOT / "start.sh"], env=environ, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=LIMIT_S
        )
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    return run


def test_the_volume_holds_the_models_and_the_kernels(environment_of: Start, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    told = environment_of(WORKER_VOLUME=str(volume))
    assert told["OLLAMA_MODELS"] == f"{volume}/ollama/models"
    assert told["CUDA_CACHE_PATH"] == f"{volume}/cuda-cache"
    assert told["CUDA_CACHE_MAXSIZE"] == "4294967295"
    assert list(volume.rglob("*probe*")) == []
    assert told["ARGUMENTS"] == str(ROOT / "handler.py")
    assert told["RUNPOD_SKIP_AUTO_SYSTEM_CHECKS"] == "true"
    assert abs(int(told["WORKER_START_NS"]) - volume.stat().st_mtime_ns) < 60e9


def test_without_a_volume_the_models_are_at_home(environment_of: Start, tmp_path: Path) -> None:
    told = environment_of(WORKER_VOLUME="/dev/null/volume")
    assert told["OLLAMA_MODELS"] == f"{tmp_path}/home/.ollama/models"
    assert "CUDA_CACHE_PATH" not in told


def test_what_is_set_already_stays(environment_of: Start, tmp_path: Path) -> None:
    chosen = {
        "OLLAMA_MODELS": "/models",
        "CUDA_CACHE_PATH": str(tmp_path / "kernels"),
        "CUDA_CACHE_MAXSIZE": "1",
        "RUNPOD_DEBUG_LEVEL": "WARN",
        "WORKER_START_NS": "5",
    }
    told = environment_of(WORKER_VOLUME=str(tmp_path), **chosen)
    assert {name: told[name] for name in chosen} == chosen


def test_sourced_it_only_defines_its_functions(tmp_path: Path) -> None:
    script = f'source "{ROOT}/start.sh"; declare -F main writable store; writable {tmp_path}/new && echo yes'
    environ = {"PATH": os.environ["PATH"], "PYTHON": "/bin/false"}
    bash = shutil.which("bash") or "bash"
    done = subprocess.run([bash, "-c", script], env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["main", "writable", "store", "yes"]
    assert list((tmp_path / "new").iterdir()) == []


def test_the_process_of_start_sh_becomes_the_worker(start_worker: StartWorker) -> None:
    # PID 1 of the container has to be the one that gets the platform's signals.
    worker: WorkerProcess = start_worker()
    assert worker.wait_event("worker.started", LIMIT_S)["pid"] == worker.process.pid
