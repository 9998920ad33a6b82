from __future__ import annotations

import contextlib
import functools
import io
import json
import shlex
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from worker.events import EventWriter
from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.local.process import ROOT, WorkerProcess, wait_for, worker_environment
from worker.local.queue import Limits, LocalQueue

if TYPE_CHECKING:
    from typing_extensions import Self

MARK = "TEST_PROCESS_MARK"
MODEL = "smollm2:135m"
START = (str(ROOT / "start.sh"),)
# Whoever runs the tests in the background has Ctrl-C ignored, which programs inherit that are to be interrupted here.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


class Marked:
    """Processes that carry `mark` in their environment; leaving the context fails if one of them is left."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.environ = {MARK: self.mark}

    @property
    def processes(self) -> list[psutil.Process]:
        """The living ones, whoever their parent is by now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def are_gone(self, timeout_s: float = 20.0) -> bool:
        return wait_for(lambda: not self.processes, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.are_gone():
            return
        left = self.processes
        lines = []
        for process in left:
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(process.cmdline())[:200])
                process.kill()
        pytest.fail(f"processes are left: {lines}")


class Workers:
    """Starts workers with `home` as their home; leaving the context ends them and fails if a process is left."""

    def __init__(self, home: Path) -> None:
        self.marked = Marked()
        self._home = home
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.marked)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(
        self, queue: LocalQueue, *, command: tuple[str, ...] = START, real: bool = False, **settings: Any
    ) -> WorkerProcess:
        """Start a worker of `queue`; `settings` go to worker_environment.

        Its server is the fake one; `real` makes it the engine, or the Ollama named by OLLAMA_BIN.
        """
        chosen = {"home": self._home, "model": MODEL, **self.marked.environ}
        if not real:
            chosen["WORKER_SERVER_COMMAND"] = FAKE
        environ = worker_environment(queue, **(chosen | settings))
        return self._stack.enter_context(WorkerProcess(environ, command=command))


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def marked() -> Iterator[Marked]:
    with Marked() as processes:
        yield processes


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


@pytest.fixture
def workers(store_home: Path) -> Iterator[Workers]:
    with Workers(store_home) as started:
        yield started


@pytest.fixture(scope="module")
def module_workers(store_home: Path) -> Iterator[Workers]:
    """For modules whose tests share a worker."""
    with Workers(store_home) as started:
        yield started


@pytest.fixture
def start_worker(queue: LocalQueue, workers: Workers) -> StartWorker:
    """Start a worker of `queue`; see Workers.start."""
    return functools.partial(workers.start, queue)
