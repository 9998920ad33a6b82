from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from worker.events import EventWriter
from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.local.process import ROOT, WorkerProcess, wait_for, worker_environment
from worker.local.queue import Limits, LocalQueue

MARK = "TEST_PROCESS_MARK"
MODEL = "smollm2:135m"
START = (str(ROOT / "start.sh"),)
FAKE = shlex.join([sys.executable, str(ROOT / "tests" / "fakes" / "server.py"), "serve"])


class Written:
    """What a component wrote: its writer, and the records it has written so far."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.writer = EventWriter(self._stream)

    @property
    def records(self) -> list[dict[str, Any]]:
        # A thread may be in the middle of a line.
        whole, _, _ = self._stream.getvalue().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def all(self, name: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == name]

    def one(self, name: str) -> dict[str, Any]:
        (record,) = self.all(name)
        return record


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes whose environment carries `mark`, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def describe(processes: list[psutil.Process]) -> list[str]:
    lines = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            lines.append(f"{process.pid}: {' '.join(process.cmdline())[:160]}")
    return lines


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def mark() -> Iterator[str]:
    """Put it into the environment of every process of the test: none of them may outlive it."""
    value = uuid.uuid4().hex
    yield value
    wait_for(lambda: not marked(value), 10.0)
    left = marked(value)
    lines = describe(left)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not lines, f"the test left processes: {lines}"


@pytest.fixture(scope="session")
def store_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A worker's home whose store holds the small model."""
    home = tmp_path_factory.mktemp("home")
    register_gguf(home / "models", MODEL, smollm2_gguf())
    return home


@pytest.fixture
def queue() -> Iterator[LocalQueue]:
    with LocalQueue(limits=Limits(ping_interval_s=1.0)) as running:
        yield running


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(queue: LocalQueue, store_home: Path, mark: str) -> Iterator[StartWorker]:
    """Start a worker of `queue`, with keywords as its environment.

    Its server is the fake one; `real` makes it the engine, or the Ollama named by OLLAMA_BIN.
    """
    with contextlib.ExitStack() as stack:

        def start(
            *, command: tuple[str, ...] = START, home: Path = store_home, real: bool = False, **settings: str
        ) -> WorkerProcess:
            chosen = {MARK: mark, **({} if real else {"WORKER_SERVER_COMMAND": FAKE}), **settings}
            environ = worker_environment(queue, home=home, **{"model": MODEL, **chosen})
            return stack.enter_context(WorkerProcess(environ, command=command))

        yield start
