"""Work beside the main thread whose thread never keeps the worker alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from worker.errors import WorkerError

Result = TypeVar("Result")


def branch(name: str, work: Callable[[], Result]) -> Future[Result]:
    """Run `work` in a thread called `name`; the future has what it returns or raises.

    A thread of an executor would be joined at the end of the process, however long a download still takes. What
    `work` should never raise is printed with its traceback, and the future then has a RuntimeError.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except (WorkerError, OSError, ImportError) as exc:
            future.set_exception(exc)
        finally:
            if not future.done():
                future.set_exception(RuntimeError(f"{name}: failed unexpectedly"))

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
