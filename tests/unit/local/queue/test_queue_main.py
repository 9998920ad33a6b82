from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[4]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-W", "error", "-m", "worker.local.queue", "--port", "0", "--hold", "0.1", "--worker", "w5"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


def read_env(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the exported variables, read up to the first line that is none."""
    env = {}
    assert process.stdout is not None
    for line in process.stdout:
        words = shlex.split(line, comments=True)
        if not words:
            break
        assert words[0] == "export"
        name, _, value = words[1].partition("=")
        env[name] = value
    return env


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_the_process_prints_a_workers_environment_serves_and_ends_on_a_signal(
    process: subprocess.Popen[str], sign: signal.Signals
) -> None:
    env = read_env(process)
    assert env["RUNPOD_POD_ID"] == "w5"
    take = env["RUNPOD_WEBHOOK_GET_JOB"]
    assert "/job-take/$ID?" in take, "the SDK, not the shell, fills the id in"
    assert requests.get(take.replace("$ID", "w5"), timeout=60).status_code == 204
    process.send_signal(sign)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == ""


def test_a_taken_port_is_said_in_one_line(process: subprocess.Popen[str]) -> None:
    port = read_env(process)["RUNPOD_WEBHOOK_PING"].split("/")[2].rpartition(":")[2]
    argv = [sys.executable, "-m", "worker.local.queue", "--port", port]
    second = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert "in use" in second.stderr
    assert "Traceback" not in second.stderr
