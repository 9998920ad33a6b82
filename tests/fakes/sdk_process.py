"""Starting and ending sdk_worker.py: the SDK's production loop in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from worker.local.queue import LocalQueue

SCRIPT = Path(__file__).with_name("sdk_worker.py")
TIMEOUT_S = 60


class SdkWorker:
    """A worker of `queue`; the context ends it and everything it started."""

    def __init__(self, queue: LocalQueue, handler: str, *, concurrency: int = 1, aggregate: bool = False) -> None:
        env = {
            **os.environ,
            **queue.worker_env("w1"),
            "HOME": os.devnull,  # a key in ~/.runpod would be preferred to the environment's
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
            "RUNPOD_SKIP_GPU_CHECK": "true",
            "SDK_WORKER_CONCURRENCY": str(concurrency),
            "SDK_WORKER_AGGREGATE": "1" if aggregate else "0",
        }
        self._queue = queue
        # A session of its own: the SDK's ping process survives a killed parent.
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), handler],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        self._queue.record.wait_for(lambda record: record.takes() and record.stops() and record.pings(), TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def terminate(self) -> None:
        """Ask the worker to end as a container's stop does."""
        self._process.terminate()

    def end(self) -> tuple[int, str]:
        """Wait for the end and return the exit code and all that was printed."""
        output, _ = self._process.communicate(timeout=TIMEOUT_S)
        return self._process.returncode, output
