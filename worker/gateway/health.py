"""What a load balancer is told: booting, resident, or not to be sent anything."""

from __future__ import annotations

from collections.abc import Callable

BOOTING, RESIDENT, UNUSABLE = 204, 200, 503


class Health:
    """The state of a worker as an HTTP status; written by its main thread, read by the one that answers."""

    def __init__(self, is_gone: Callable[[], bool]) -> None:
        """Begin with a worker that boots; `is_gone` says whether its server has ended."""
        self._is_gone = is_gone
        self._resident = False
        self._stopping = False

    def become_resident(self) -> None:
        """The model is in memory: requests are welcome."""
        self._resident = True

    def stop(self) -> None:
        """No new request is taken from here on."""
        self._stopping = True

    @property
    def status(self) -> int:
        """Return 204 while booting, 200 while resident, 503 when stopping or when the server is gone."""
        if self._stopping or self._is_gone():
            return UNUSABLE
        return RESIDENT if self._resident else BOOTING
