from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.fakes import tiny_gguf
from tests.fakes.api_server import ROOT, ApiServer, wait_for
from worker.local.engine.store import register_gguf

ENGINE = [sys.executable, "-m", "worker.local.engine"]


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(
        argv, capture_output=True, text=True, env=environment, timeout=100, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("argv", [[], ["run"], ["serve", "now"]])
def test_anything_but_serve_is_a_usage_error(argv: list[str]) -> None:
    done = run(*ENGINE, *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")


def test_a_port_that_is_taken_is_one_line_and_status_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(*ENGINE, "serve", OLLAMA_HOST=host, OLLAMA_MODELS=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: listen tcp: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "absent"),
    [("serve", "xllamacpp"), ("llama", "aiohttp"), ("store", "aiohttp")],
    ids=["serve", "llama", "store"],
)
def test_nothing_is_imported_that_would_slow_the_start(module: str, absent: str) -> None:
    code = f"import sys, worker.local.engine.{module}; sys.exit({absent!r} in sys.modules)"
    assert run(sys.executable, "-c", code).returncode == 0


def test_a_runner_that_cannot_load_ends_with_1_and_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_gguf.embedding_model(tmp_path / "whole.gguf").read_bytes()[:-30_000])
    # The other end of stdin stays open, as the engine keeps it.
    with subprocess.Popen(
        [*ENGINE, "runner", "--model", str(broken), "-c", "64"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as runner:
        assert runner.wait(100) == 1
        assert runner.stdout is not None
        assert runner.stderr is not None
        assert runner.stdout.read() == ""
        assert "error loading model" in runner.stderr.read()


def test_an_engine_that_is_killed_takes_its_runner_along(tmp_path: Path) -> None:
    with ApiServer("engine", tmp_path / "home") as server:
        register_gguf(server.models, "tiny", tiny_gguf.embedding_model(tmp_path / "tiny.gguf"))
        assert server.post("/api/embed", {"model": "tiny", "input": "x"}).ok
        (runner,) = psutil.Process(server.process.pid).children()
        os.kill(server.process.pid, signal.SIGKILL)
        assert wait_for(lambda: not runner.is_running() or runner.status() == psutil.STATUS_ZOMBIE)


def test_the_start_is_logged_as_ollama_logs_it(tmp_path: Path) -> None:
    with ApiServer("engine", tmp_path / "home", OLLAMA_CONTEXT_LENGTH="1234") as server:
        output = server.output
    assert f'msg="Listening on 127.0.0.1:{server.port} (version ' in output
    assert 'msg="inference compute" id=cpu library=cpu' in output
    assert 'msg="vram-based default context"' in output
    assert "default_num_ctx=1234" in output


def test_a_load_is_logged_as_ollama_logs_it(tmp_path: Path) -> None:
    with ApiServer("engine", tmp_path / "home") as server:
        register_gguf(server.models, "tiny", tiny_gguf.embedding_model(tmp_path / "tiny.gguf"))
        assert server.post("/api/embed", {"model": "tiny", "input": "x"}).ok
        # The runner's own line goes through another pipe and may come later than what the engine says about it.
        assert wait_for(lambda: "model buffer size =" in server.output)
        output = server.output
    marks = [
        'msg="starting llama-server" cmd=',
        'msg="waiting for llama-server to start responding"',
        'msg="llama-server started in ',
        'msg="loaded runners" count=1',
        '"/api/embed"',
    ]
    places = [output.find(mark) for mark in marks]
    assert -1 not in places
    assert places == sorted(places)
