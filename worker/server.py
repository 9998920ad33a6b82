"""The server process: one owner, from spawn to the last process of its group; its exit is terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from worker import events, remedy
from worker.errors import ServerExited, ServerTimeout

TAIL_LINES = 40
LINE_BYTES = 16 * 1024
PROBE_INTERVAL_S = 0.01
LOG_END_S = 0.5
EXIT_NOTICED_S = 1.0


class Server:
    """The `ollama serve` child, its log, and its end.

    `on_exit` is called once, from a thread, when the process ends without `stop` having been called.
    """

    def __init__(self, writer: events.EventWriter, *, on_exit: Callable[[], None] | None = None) -> None:
        """Prepare an owner that has not started anything yet."""
        self._events = writer
        self._on_exit = on_exit or (lambda: None)
        self._process: subprocess.Popen[bytes] | None = None
        self._environ: Mapping[str, str] = {}
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stopping = False
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._return_code: int | None = None

    def spawn(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the server in a process group of its own.

        Call it from the main thread: the kernel ends the child when the thread that started it ends.

        Raises:
            ServerExited: the program cannot be started, or `stop` was called before.
        """
        if shutil.which(argv[0], path=environ.get("PATH")) is None:
            raise ServerExited(127, [f"{argv[0]}: not found or not executable"], remedy.absent(environ))
        with self._changing:
            if self._stopping:
                raise ServerExited(0, ["stopped before it was started"])
            self._environ = environ
            process = self._process = _start(argv, environ)
        self._events.write(events.ServerSpawned(pid=process.pid, argv=list(argv)))
        reader = threading.Thread(target=self._read_log, args=(process.stdout,), name="server-log", daemon=True)
        reader.start()
        threading.Thread(target=self._watch, args=(process, reader), name="server-watch", daemon=True).start()

    def wait_until(self, attempt: Callable[[], bool], stage: str, limit_s: float) -> None:
        """Call `attempt` every 10 ms until it returns True.

        Raises:
            ServerExited: the process ended first.
            ServerTimeout: `limit_s` seconds passed; `stage` is named.
        """
        deadline = time.monotonic() + limit_s
        while not attempt():
            self.check()
            if time.monotonic() > deadline:
                raise ServerTimeout(stage, limit_s, self.tail_hint())
            self._ended.wait(PROBE_INTERVAL_S)
        self.check()

    def check(self) -> None:
        """Raise ServerExited if the process has ended."""
        if self._return_code is not None:
            tail = list(self._tail)
            raise ServerExited(self._return_code, tail, remedy.after_end(self._return_code, tail, self._environ))

    @contextlib.contextmanager
    def blamed(self, *failures: type[Exception]) -> Iterator[None]:
        """Let the end of the process be the reason for one of `failures` that came of it.

        The lost connection is noticed first; what the process left behind says why.
        """
        try:
            yield
        except failures:
            self.wait_ended(EXIT_NOTICED_S)
            self.check()
            raise

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._ended.is_set()

    def wait_ended(self, limit_s: float) -> bool:
        """Wait up to `limit_s` seconds for the end of the process; return whether it came."""
        return self._ended.wait(limit_s)

    def tail_hint(self) -> str:
        """Return the last lines of the server's log as one line of text."""
        lines = [line.strip() for line in list(self._tail)[-3:]]
        return f"Last of its log: {' | '.join(lines)}" if lines else "It logged nothing"

    def stop(self, grace_s: float = 5.0) -> None:
        """End the process and everything it started; safe to call at any time, more than once."""
        with self._changing:
            already = self._stopping or self._ended.is_set()
            self._stopping = True
            if self._process is None:
                return
            self._signal_group(signal.SIGTERM)
            if not self._ended.wait(grace_s):
                self._signal_group(signal.SIGKILL)
                self._ended.wait()
            # The leader may have gone before its runner: the group lives as long as one member does.
            self._signal_group(signal.SIGKILL)
            if not already:
                self._events.write(events.ServerStopped(return_code=self._process.returncode))

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _read_log(self, pipe: IO[bytes] | None) -> None:
        if pipe is None:
            return
        with pipe:
            while raw := pipe.readline(LINE_BYTES):
                line = raw.decode("utf-8", errors="backslashreplace").rstrip("\r\n")
                if line:
                    self._tail.append(line)
                    self._events.write(events.ServerLogged(line=line))

    def _watch(self, process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        return_code = process.wait()
        # What the server leaves behind is of no use and keeps its log open.
        self._signal_group(signal.SIGKILL)
        # The reason for an exit is usually the last line.
        reader.join(LOG_END_S)
        self._return_code = return_code
        self._ended.set()
        if not self._stopping:
            self._events.write(events.ServerExited(return_code=return_code))
            self._on_exit()


def _start(argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [*_tied_to_parent(), *argv],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as exc:
        raise ServerExited(126, [f"{argv[0]}: {exc.strerror}"], "The container may be out of memory") from exc


def _tied_to_parent() -> list[str]:
    """Return a command prefix that ends the server when the worker dies by a signal it cannot handle.

    setpriv sets PR_SET_PDEATHSIG between fork and exec; doing that in Python would run code in a forked
    child of a threaded process.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
