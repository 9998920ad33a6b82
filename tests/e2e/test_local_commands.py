"""The commands a person runs first: one question, a standing queue, and the image without Runpod."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.conftest import FAKE, MODEL, Marked
from worker.local import demo
from worker.local.process import ROOT, free_port, wait_for

LIMIT_S = 90.0


def environment(home: Path, marked: Marked, **settings: str) -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in ("PATH", "OLLAMA_BIN") if name in os.environ}
    return {**passed_on, "HOME": str(home), "PYTHON": sys.executable, **marked.environ, **settings}


def local(home: Path, marked: Marked, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the commands to its end."""
    return subprocess.run(
        [sys.executable, "-m", "worker", "local", *arguments],
        env=environment(home, marked),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_one_question_is_answered_and_the_waterfall_adds_up(tmp_path: Path, marked: Marked) -> None:
    done = local(tmp_path, marked, "run", "--ask", "Say hello.")
    assert done.returncode == 0, done.stderr
    _, question, answer = done.stdout.partition("\n> Say hello.\n\n")
    assert question, done.stdout
    assert len(answer.partition("\n\n")[0]) > 1, "no tokens were printed"
    total = re.search(r"total +(\d+) += spans (\d+) \+ gaps (\d+)", done.stdout)
    assert total, done.stdout
    whole, spans, gaps = map(int, total.groups())
    assert whole == spans + gaps
    assert "Critical path:" in done.stdout


@pytest.mark.parametrize("command", [["run"], ["serve", "--port", "0"]], ids=["run", "serve"])
def test_interrupted_in_its_boot_a_command_ends_with_everything_it_started_and_without_a_traceback(
    tmp_path: Path, marked: Marked, command: list[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "worker", "local", *command],
        env=environment(tmp_path, marked),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # The first stage: a worker and a server are there.
        assert any("start.sh and Python" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
        assert process.wait(LIMIT_S) == 130
    assert error == "\nInterrupted; nothing is left running.\n"


@pytest.mark.parametrize("model", ["/no/such/model.gguf", "./no-such.gguf", "~/no-such"])
def test_a_path_to_nothing_is_told_before_anything_starts(tmp_path: Path, marked: Marked, model: str) -> None:
    done = local(tmp_path, marked, "run", "--model", model)
    assert done.returncode == 1
    whole = str(tmp_path / "no-such") if model.startswith("~") else str(ROOT / model)
    assert f"There is no {whole}: MODEL is" in done.stderr
    assert not done.stdout


def test_a_port_that_is_taken_is_told(tmp_path: Path, marked: Marked) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = local(tmp_path, marked, "serve", "--port", port)
    assert done.returncode == 1
    assert f"Port {port} cannot be listened on" in done.stderr
    assert "make serve PORT=" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("port", ["abc", "99999", "-1", "80.5"])
def test_a_port_that_is_none_is_told_before_anything_starts(tmp_path: Path, marked: Marked, port: str) -> None:
    done = local(tmp_path, marked, "serve", f"--port={port}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"PORT is {port!r}: it must be a number from 0 (any free port) to 65535, as in make serve PORT=8001\n"
    )


@pytest.mark.parametrize(("text", "port"), [("", 8000), ("  ", 8000), ("0", 0), (" 8001 ", 8001), ("65535", 65535)])
def test_a_port_may_be_left_to_the_command(text: str, port: int) -> None:
    assert demo._port(text) == port


LONG_JOB = {"prompt": "Tell me a long story.", "options": {"num_predict": 3000, "num_ctx": 4096, "temperature": 0}}
SHORT_JOB = {"prompt": "Tell me a long story.", "options": {"num_predict": 150, "temperature": 0}}


def outcome(endpoint: str, job: dict[str, Any]) -> str:
    """Run a job and return its status, or nothing when the queue went away before it had one."""
    try:
        return str(requests.post(f"{endpoint}/runsync", json={"input": job}, timeout=LIMIT_S).json()["status"])
    except requests.ConnectionError:
        return ""


@pytest.mark.parametrize(("presses", "job", "ended"), [(1, SHORT_JOB, {"COMPLETED"}), (2, LONG_JOB, {"", "FAILED"})])
def test_one_ctrl_c_lets_a_job_finish_and_says_so_and_a_second_one_ends_it(
    tmp_path: Path, marked: Marked, presses: int, job: dict[str, Any], ended: set[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "worker", "local", "serve", "--port", "0"],
        env=environment(tmp_path, marked, PYTHONUNBUFFERED="1"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        endpoint = next(line.split()[-1] for line in lines if "RunPod API" in line).removesuffix("/runsync")
        assert any("Ctrl-C ends it" in line for line in lines)
        below = psutil.Process(process.pid).children(recursive=True)
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(outcome, endpoint, job)
            running = {"inProgress": 1}
            assert wait_for(lambda: running.items() <= health(endpoint)["jobs"].items(), LIMIT_S)
            os.killpg(process.pid, signal.SIGINT)
            assert any("Waiting for the job that runs; Ctrl-C again ends it at once." in line for line in lines)
            if presses > 1:
                os.killpg(process.pid, signal.SIGINT)
            rest = "".join(lines)
            assert process.wait(LIMIT_S) == (0 if presses == 1 else 130), rest
            assert answer.result(LIMIT_S) in ended
    assert "Traceback" not in rest
    assert len(below) > 1
    assert wait_for(lambda: not any(process.is_running() for process in below))


def health(endpoint: str) -> dict[str, Any]:
    told: dict[str, Any] = requests.get(f"{endpoint}/health", timeout=LIMIT_S).json()
    return told


@pytest.fixture
def standalone_environment(store_home: Path, marked: Marked) -> dict[str, str]:
    return environment(
        store_home,
        marked,
        PORT=str(free_port()),
        OLLAMA_HOST=f"127.0.0.1:{free_port()}",
        OLLAMA_MODELS=str(store_home / "models"),
        OLLAMA_MODEL=MODEL,
        WORKER_SERVER_COMMAND=FAKE,
        WORKER_ALLOW_CPU="1",
        WORKER_VOLUME=str(store_home / "volume"),
        WORKER_API_KEY="a key",
    )


def listening(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


def ask(environ: dict[str, str], key: str) -> requests.Response:
    return requests.post(
        f"http://127.0.0.1:{environ['PORT']}/v2/local/runsync",
        json={"input": {"prompt": "hi"}},
        headers={"Authorization": f"Bearer {key}"},
        timeout=LIMIT_S,
    )


def test_the_image_serves_the_job_api_without_an_account_and_ends_when_asked(
    standalone_environment: dict[str, str],
) -> None:
    with subprocess.Popen(
        [str(ROOT / "start.sh"), "local"],
        env=standalone_environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert wait_for(lambda: listening(standalone_environment["PORT"]), LIMIT_S)
            refused = ask(standalone_environment, "another key")
            answered = ask(standalone_environment, "a key")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert refused.status_code == 401
    assert answered.json()["status"] == "COMPLETED", answered.text
    assert answered.json()["output"][0]["response"]
