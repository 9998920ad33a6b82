"""SIGTERM and SIGINT until the job loop handles them: noticed by a thread, so that nothing is cut in half."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """The first signal that asks the process to stop.

    An exception raised by a signal handler comes up wherever the main thread happens to be: in a lock, in a
    half-done import, in a callback that drops it. So the handler does nothing, and a thread learns of the signal
    through a pipe.
    """

    def __init__(self, on_stop: Callable[[signal.Signals], None]) -> None:
        """Call `on_stop` once, from a thread, when the first signal comes."""
        self._on_stop = on_stop
        self._received = threading.Event()

    @property
    def received(self) -> bool:
        """Whether a signal has come; true before `on_stop` is called."""
        return self._received.is_set()

    def listen(self) -> None:
        """Begin to notice signals; call it from the main thread."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        threading.Thread(target=self._watch, args=(reading,), name="stop-signal", daemon=True).start()
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in NUMBERS:
            signal.signal(number, _do_nothing)

    def ignore(self) -> None:
        """Let further signals have no effect; call it from the main thread."""
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def _watch(self, pipe: int) -> None:
        number = 0
        while number not in NUMBERS:
            (number,) = os.read(pipe, 1)
        self._received.set()
        self._on_stop(signal.Signals(number))


def _do_nothing(_number: int, _frame: object) -> None:
    """Keep the default action, which would end the process, from happening."""
