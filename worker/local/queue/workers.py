"""What the queue knows of its workers: when they were last heard, and which jobs they must stop."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass


@dataclass
class Worker:
    """One worker. `heard_s` is its last ping, or its first take while it has not pinged."""

    worker_id: str
    heard_s: float
    healthy: bool = True


class Workers:
    """Every worker seen and not yet given up."""

    def __init__(self, silence_s: float) -> None:
        """Give a worker up after `silence_s` seconds without a ping."""
        self._silence_s = silence_s
        self._known: dict[str, Worker] = {}
        self._stops: defaultdict[str, list[str]] = defaultdict(list)

    def meet(self, worker_id: str, now_s: float) -> Worker:
        """Return the worker, new or known; asking for jobs is no sign of life, only pings are."""
        return self._known.setdefault(worker_id, Worker(worker_id, now_s))

    def ping(self, worker_id: str, now_s: float, *, healthy: bool) -> None:
        """Note a sign of life, or a report that the worker is about to exit."""
        worker = self.meet(worker_id, now_s)
        worker.heard_s = now_s
        worker.healthy = healthy

    def stop(self, worker_id: str, *job_ids: str) -> None:
        """Tell a worker at its next stop poll to stop these jobs; duplicates and unknown ids are sent as they are."""
        self._stops[worker_id].extend(job_ids)

    def take_stops(self, worker_id: str) -> list[str]:
        """Return and forget the pending stops of a worker."""
        return self._stops.pop(worker_id, [])

    def give_up_silent(self, now_s: float) -> None:
        """Forget the workers that missed too many pings."""
        for worker in list(self._known.values()):
            if now_s - worker.heard_s > self._silence_s:
                del self._known[worker.worker_id]

    def counts(self, busy: set[str]) -> dict[str, int]:
        """Return how many workers are idle, running (in `busy`) and unhealthy."""
        unhealthy = {name for name, worker in self._known.items() if not worker.healthy}
        running = (busy & self._known.keys()) - unhealthy
        return {
            "idle": len(self._known) - len(running) - len(unhealthy),
            "running": len(running),
            "unhealthy": len(unhealthy),
        }
