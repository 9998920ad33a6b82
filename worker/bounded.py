"""A call into a filesystem that may never return, given up after a limit."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Stalled(TimeoutError):
    """Storage did not answer within the limit; a TimeoutError, so that it is handled like any other OSError."""


def call(function: Callable[[], T], limit_s: float, doing: str) -> T:
    """Return what `function` returns; `doing` says in an error what it was about.

    A system call that hangs in the kernel cannot be interrupted: its thread is left behind, and Python does not wait
    for it at its end.

    Raises:
        Stalled: it took longer than `limit_s` seconds.
        OSError: as `function` raised it, which must raise nothing else; or no thread could be started.
    """
    results: list[T] = []
    failures: list[OSError] = []

    def work() -> None:
        try:
            results.append(function())
        except OSError as exc:
            failures.append(exc)

    thread = threading.Thread(target=work, name="bounded", daemon=True)
    start(thread)
    thread.join(limit_s)
    # Asked first: what ends while its results are looked at has them.
    alive = thread.is_alive()
    if results:
        return results[0]
    if failures:
        raise failures[0]
    if not alive:
        raise RuntimeError(f"{doing}: failed unexpectedly")
    raise Stalled(f"{doing}: no answer within {limit_s:g} s")


def start(thread: threading.Thread) -> None:
    """Start `thread`; raise OSError where the machine has no room for another one."""
    try:
        thread.start()
    except RuntimeError as exc:
        raise OSError(errno.EAGAIN, "no thread could be started", thread.name) from exc
