"""A worker started the way its container starts it: start.sh in a process of its own, its event stream read live."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from worker.local import descendants
from worker.local.queue import LocalQueue

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
_PORTS = range(20_000, 32_000)
# What a worker gets to end in, and what it gets when the person at the terminal has had enough.
_PATIENCE_S, _INTERRUPTED_S = 40.0, 10.0
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")


def free_port() -> int:
    """Return a loopback port nobody listens on right now.

    From below the range the kernel takes ports for outgoing connections from: one of those could have it by the time
    it is listened on.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def server_command() -> str:
    """Return the command of the server to run: a real Ollama named by OLLAMA_BIN, else the local engine."""
    real = os.environ.get("OLLAMA_BIN")
    return f"{real} serve" if real else f"{sys.executable} -m worker.local.engine serve"


def worker_environment(
    queue: LocalQueue, *, home: Path, model: str, worker_id: str = "local-worker", **settings: str
) -> dict[str, str]:
    """Return a whole environment for a worker of `queue` whose store and volume are below `home`."""
    inherited = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        **inherited,
        **queue.worker_env(worker_id),
        "HOME": str(home),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "WORKER_VOLUME": str(home / "volume"),
        "OLLAMA_MODELS": str(home / "models"),
        "OLLAMA_MODEL": model,
        "OLLAMA_HOST": f"127.0.0.1:{free_port()}",
        "WORKER_SERVER_COMMAND": server_command(),
        "WORKER_ALLOW_CPU": "1",
        **settings,
    }


class WorkerProcess:
    """One run of start.sh. `records` are its events as dicts, `lines` everything it printed."""

    def __init__(self, environ: Mapping[str, str], *, command: tuple[str, ...] = (str(ROOT / "start.sh"),)) -> None:
        """Prepare to run `command` in `environ`, and in no other environment."""
        self.lines: list[str] = []
        self.records: list[dict[str, Any]] = []
        self._environ = dict(environ)
        self._command = command
        self._arrived = threading.Condition()
        self._at_end = False
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, name="worker-output", daemon=True)

    def __enter__(self) -> Self:
        """Start the worker."""
        self._process = subprocess.Popen(
            self._command,
            env=self._environ,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker, by force if asking does not help."""
        try:
            self.stop(_INTERRUPTED_S if isinstance(error, KeyboardInterrupt) else _PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def process(self) -> subprocess.Popen[str]:
        """The started process."""
        if self._process is None:
            raise RuntimeError("the worker has not been started")
        return self._process

    def events(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Yield every record from the first one on, as they come, until the worker's output ends.

        Raises TimeoutError when nothing new comes for `timeout_s` seconds.
        """
        seen = 0
        while fresh := self._after(seen, timeout_s):
            seen += len(fresh)
            yield from fresh

    def wait_event(self, name: str, timeout_s: float = 60.0, **fields: object) -> dict[str, Any]:
        """Return the first record called `name` whose fields have the given values; raise TimeoutError."""
        wanted = {"event": name, **fields}

        def found() -> dict[str, Any] | None:
            return next((r for r in self.records if wanted.items() <= _hashable(r).items()), None)

        with self._arrived:
            self._arrived.wait_for(lambda: self._at_end or found() is not None, timeout_s)
            record = found()
        if record is None:
            raise TimeoutError(f"no {wanted} within {timeout_s:g} s; the worker's last lines: {self.tail()}")
        return record

    def tail(self) -> str:
        """Return the last lines printed, for messages."""
        return "\n".join(self.lines[-15:])

    def signal(self, number: signal.Signals) -> None:
        """Send one signal to the worker's own process, as the platform does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def stop(self, timeout_s: float = _PATIENCE_S) -> int:
        """Ask the worker to stop and return its exit code; raise TimeoutExpired when it does not.

        An interrupt meanwhile is from somebody who does not want to wait: it ends the worker at once.
        """
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout_s)
        except KeyboardInterrupt:
            self.kill()
            raise

    def kill(self) -> int:
        """End the worker and everything below it at once, whatever it is doing; return its exit code."""
        # While it lives it is the parent of all that: its server is in a group of its own.
        descendants.end(self.process.pid)
        self.process.kill()
        return self.wait()

    def wait(self, timeout_s: float = _PATIENCE_S) -> int:
        """Return the exit code once the worker has ended; raise TimeoutExpired."""
        code = self.process.wait(timeout_s)
        self._reader.join(5.0)
        return code

    def _after(self, seen: int, timeout_s: float) -> list[dict[str, Any]]:
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._at_end or len(self.records) > seen, timeout_s):
                raise TimeoutError(f"the worker said nothing new for {timeout_s:g} s; its last lines: {self.tail()}")
            return self.records[seen:]

    def _read(self) -> None:
        output = self.process.stdout
        if output is None:
            return
        with output:
            for line in output:
                self._take(line.rstrip("\n"))
        with self._arrived:
            self._at_end = True
            self._arrived.notify_all()

    def _take(self, line: str) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        with self._arrived:
            self.lines.append(line)
            if isinstance(record, dict) and "event" in record and "at_ns" in record:
                self.records.append(record)
                self._arrived.notify_all()


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Return whether `condition` came true within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _hashable(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if isinstance(value, (str, int, float, bool, type(None)))}
