"""One container of the worker image: its event stream read live, a job queue inside its network, its end."""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.image.engine import Engine
from worker.local.process import wait_for
from worker.local.queue import Limits, LocalQueue

if TYPE_CHECKING:
    from typing_extensions import Self

QUEUE_PORT = 8000
STOP_LIMIT_S = 40.0


class Container:
    """A run of the image without any network but its own loopback. `lines` and `records` are what it printed."""

    def __init__(
        self,
        engine: Engine,
        image: str,
        environ: Mapping[str, str],
        *,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """Prepare to run `image` with `arguments` and `docker run`'s `options`."""
        self.lines: list[str] = []
        self._engine = engine
        self._command = [
            *("create", "--network=none", *options),
            *(f"--env={name}={value}" for name, value in environ.items()),
            *(image, *arguments),
        ]
        self._id = ""
        self._logs: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, name="container-log", daemon=True)
        self._queue: LocalQueue | None = None

    def __enter__(self) -> Self:
        """Start it."""
        self._id = self._engine.docker(*self._command).stdout.strip()
        self._logs = subprocess.Popen(
            [*self._engine.enter(), "docker", "start", "--attach", self._id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
        )
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it, running or not."""
        if self._queue is not None:
            self._queue.stop()
        self._engine.docker("rm", "--force", "--volumes", self._id, check=False)
        if self._logs is not None:
            self._logs.wait(STOP_LIMIT_S)
            self._reader.join(5.0)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The events among the lines."""
        found = []
        for line in list(self.lines):
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and "event" in record:
                    found.append(record)
        return found

    def wait_event(self, name: str, timeout_s: float = 90.0) -> dict[str, Any]:
        """Return the first event of that name; raise TimeoutError, or RuntimeError when the container has ended."""

        def found() -> dict[str, Any] | None:
            return next((record for record in self.records if record["event"] == name), None)

        wait_for(lambda: found() is not None or not self._reader.is_alive(), timeout_s)
        record = found()
        if record is None:
            raise TimeoutError(f"no {name} from the container:\n{self.tail()}")
        return record

    def tail(self) -> str:
        """Return its last lines, for messages."""
        return "\n".join(self.lines[-25:])

    def queue(self) -> LocalQueue:
        """Return the job queue on the container's loopback, starting it when first asked for."""
        if self._queue is None:
            wait_for(lambda: self._state("Running") == "true", 20.0)
            queue = LocalQueue(port=QUEUE_PORT, limits=Limits(ping_interval_s=1.0))
            # The queue's own thread is started by one that is in the container's network, and so is in it too.
            _in_network(self._engine.network_of(self._id), queue.start)
            self._queue = queue
        return self._queue

    def exec(self, *command: str) -> str:
        """Run a command in the container and return its output; raise RuntimeError when it fails."""
        return self._engine.docker("exec", self._id, *command).stdout

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's first process."""
        self._engine.docker("kill", f"--signal={number.name}", self._id)

    def end(self, timeout_s: float = STOP_LIMIT_S) -> int:
        """Wait for its end and return the exit code; raise TimeoutError."""
        if not wait_for(lambda: self._state("Running") == "false", timeout_s):
            raise TimeoutError(f"the container still runs after {timeout_s:g} s:\n{self.tail()}")
        self._reader.join(5.0)
        return int(self._state("ExitCode"))

    def _state(self, field: str) -> str:
        return self._engine.docker("inspect", "--format", f"{{{{.State.{field}}}}}", self._id).stdout.strip()

    def _read(self) -> None:
        if self._logs is None or self._logs.stdout is None:
            return
        with self._logs.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))


def worker_environ() -> dict[str, str]:
    """Return what makes a container a worker of its queue, before that queue exists."""
    with LocalQueue(limits=Limits(ping_interval_s=1.0)) as queue:
        own = queue.base_url
        return {
            name: value.replace(own, f"http://127.0.0.1:{QUEUE_PORT}") for name, value in queue.worker_env().items()
        }


def _in_network(namespace: Path, action: Callable[[], None]) -> None:
    """Run `action` in a thread inside a network namespace; raise what it raises."""

    def run() -> None:
        _enter(namespace)
        action()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()


def _enter(namespace: Path) -> None:
    """Move the calling thread, and only it, into a network namespace."""
    with namespace.open("rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
