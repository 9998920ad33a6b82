"""Whose turn it is to bring a model into a store that many share: one worker's, while the others watch."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.lease import Lease, LeaseLost
from worker.location import Located, locate
from worker.progress import Halted, Progress
from worker.references import Wanted
from worker.store import Store

_CHECKS_PER_TERM = 6


class WaitedInVain(Exception):
    """Another worker holds the lease and has not finished within the limit."""


@dataclass
class Fence:
    """Stops the work of a holder whose lease is over, at the latest a sixth of a term after it was taken over."""

    lease: Lease
    _checked_s: float = field(default_factory=time.monotonic)

    def halt(self) -> None:
        """Raise Halted unless the lease was this worker's within the last sixth of its term."""
        now_s = time.monotonic()
        if now_s - self._checked_s < self.lease.term_s / _CHECKS_PER_TERM:
            return
        try:
            self.lease.check()
        except LeaseLost as exc:
            raise Halted(f"another worker goes on with it: {exc}") from exc
        except OSError as exc:
            # Storage that fails for a moment is no reason to stop; one that fails for a whole term is.
            if now_s - self._checked_s > self.lease.term_s:
                raise Halted(f"the lease cannot be read: {exc.strerror or exc}") from exc
            return
        self._checked_s = now_s


@dataclass(frozen=True)
class Turn:
    """The wish to bring one model into one store; `pause_s` is how often a waiting worker looks."""

    store: Store
    wanted: Wanted
    term_s: float = 60.0
    pause_s: float = 0.5

    def take(self, limit_s: float, told: Callable[[str, Progress], None] = lambda *_: None) -> Lease | Located:
        """Return the lease when it is this worker's turn, or the model as soon as the store has it.

        Meanwhile `told` gets what the holder says of itself: its source and how far it is.

        Raises:
            WaitedInVain: neither came within `limit_s` seconds.
            OSError: the store cannot be written.
        """
        deadline_s = time.monotonic() + limit_s
        said = None
        while True:
            lease = Lease.acquire(self._lease, term_s=self.term_s, note=self.wanted.name.short)
            # After the attempt, not before: the holder may have finished in between.
            found = locate([self.store.root], self.wanted)
            if isinstance(found, Located):
                if lease is not None:
                    lease.release()
                return found
            if lease is not None:
                return lease
            if time.monotonic() > deadline_s:
                raise WaitedInVain(f"another worker holds {self._lease.name} and did not finish within {limit_s:g} s")
            news = self._news()
            if news is not None and news != said:
                said = news
                told(*news)
            # Workers that were started together do not all look at the same moment.
            time.sleep(self.pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads load, keeps no secret

    def tell(self, source: str, progress: Progress) -> None:
        """Note how far this worker is, for those who wait."""
        note = {"source": source, "done": progress.done_bytes, "total": progress.total_bytes}
        fresh = self._progress.with_name(f".{self._progress.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(note | {"rate": progress.rate_bytes_per_s}), encoding="utf-8")
            fresh.replace(self._progress)

    def over(self) -> None:
        """Take the note away."""
        with contextlib.suppress(OSError):
            self._progress.unlink(missing_ok=True)

    def _news(self) -> tuple[str, Progress] | None:
        try:
            note: dict[str, Any] = json.loads(self._progress.read_bytes())
            return str(note["source"]), Progress(int(note["done"]), int(note["total"]), float(note["rate"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def _lease(self) -> Path:
        return self.store.leases / f"{self.wanted.shelf}.lease"

    @property
    def _progress(self) -> Path:
        return self.store.leases / f"{self.wanted.shelf}.progress"
