"""Starts one of the three servers that speak Ollama's API, in a process of its own and with its own store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest
import requests

from worker.local.process import free_port

if TYPE_CHECKING:
    from typing_extensions import Self

# A real Ollama takes part when it is named; test_server_contract.py says so when it is not.
OLLAMA = [pytest.param("ollama", marks=pytest.mark.ollama)] if os.environ.get("OLLAMA_BIN") else []
KINDS = ["engine", "fake", *OLLAMA]
# Those that load models into processes of their own.
WITH_RUNNERS = ["engine", *OLLAMA]
ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "fakes" / "server.py"
# What Python prints when something was left open or went wrong unseen.
_COMPLAINT = re.compile(r"Traceback|Warning|was never|was destroyed|Unhandled")
STOP_LIMIT_S = 10.0
START_LIMIT_S = 90.0
ANSWER_LIMIT_S = 110.0


def wait_for(condition: Callable[[], object], limit_s: float = 30.0) -> bool:
    """Return whether `condition` came true within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait, without blocking the loop, until `condition` is true; raise TimeoutError when it stays false."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        await asyncio.sleep(0.005)


def command(kind: str) -> list[str]:
    """Return the argv of `engine`, `fake` or `ollama`."""
    if kind == "ollama":
        return [os.environ["OLLAMA_BIN"], "serve"]
    return [sys.executable, *(["-m", "worker.local.engine"] if kind == "engine" else [str(FAKE)]), "serve"]


class ApiServer:
    """A running server; leaving the context ends it, kills what is left of its group, and looks for complaints."""

    def __init__(self, kind: str, home: Path, **settings: str) -> None:
        """Prepare a server of `kind` with its store in `home`/models; `settings` go into its environment."""
        home.mkdir(parents=True, exist_ok=True)
        self.kind = kind
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.models = Path(settings.get("OLLAMA_MODELS", home / "models"))
        self.log = home / "server.log"
        self._environ = {
            **{name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ},
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            # What is left open must be seen in the log.
            "PYTHONWARNINGS": "always::ResourceWarning",
            "OLLAMA_HOST": f"127.0.0.1:{self.port}",
            "OLLAMA_MODELS": str(self.models),
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_CONTEXT_LENGTH": "2048",
            "OLLAMA_NOPRUNE": "1",
            # Two threads that wait for each other crawl on a machine that does other things too.
            "LLAMA_ARG_THREADS": "1",
            "OLLAMA_NO_CLOUD": "1",
            **settings,
        }

    def __enter__(self) -> Self:
        self.start()
        assert wait_for(self.answers, START_LIMIT_S), f"{self.kind} does not answer:\n{self.output}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        complaints = [line for line in self.output.splitlines() if _COMPLAINT.search(line)]
        assert error is not None or self.kind == "ollama" or not complaints, complaints

    def start(self) -> None:
        """Start the process without waiting for it to answer."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command(self.kind), env=self._environ, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def output(self) -> str:
        """Return everything the server has printed."""
        return self.log.read_text("utf-8", "replace")

    def answers(self) -> bool:
        """Say whether GET / is answered now."""
        assert self.process.poll() is None, f"{self.kind} ended with {self.process.returncode}:\n{self.output}"
        try:
            return requests.get(self.url, timeout=2).status_code == requests.codes.ok
        except requests.RequestException:
            return False

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, timeout=ANSWER_LIMIT_S)

    def post(self, path: str, body: Any = None, **more: Any) -> requests.Response:
        """Send `body` as JSON, or more['data'] as it is."""
        return requests.post(self.url + path, json=body, timeout=ANSWER_LIMIT_S, **more)
