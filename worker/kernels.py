"""Compiled kernels made ready for the load, and kept for the next worker after the first job."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from worker import events
from worker.environment import BACKEND_FILE
from worker.folders import BAKED_KERNELS, home, kernels

if TYPE_CHECKING:
    from worker.choice import Choice
    from worker.events import EventWriter
    from worker.jit_cache import JitCache

VARIABLE = "CUDA_CACHE_PATH"
MODE_VARIABLE = "WORKER_JIT_CACHE"


class Kernels:
    """The JIT cache of one worker: where the driver keeps what it compiles, and what happens to that.

    `direct`: start.sh has pointed the driver at the volume, nothing is to be done. `mirror`: the driver works on local
    disk, one packed copy on the volume is read before the load and written after the first job. `off`: local disk only.
    """

    def __init__(self, environ: Mapping[str, str], libraries: Path | None, writer: EventWriter) -> None:
        """Choose by `environ`; a mode that does not exist is the configuration's to report.

        `libraries` is where the server's backends are.
        """
        self._environ = environ
        self._libraries = libraries
        self._mode = environ.get(MODE_VARIABLE, "").strip() or "direct"
        self._local = home(environ) / "cuda-cache"
        self._shared = kernels(environ)
        self._events = writer
        self._cache: JitCache | None = None

    def variables(self) -> dict[str, str]:
        """Return what the server is to be told."""
        return {VARIABLE: str(self._local)} if self._mode in {"mirror", "off"} else {}

    def make_ready(self, judged: Choice | None) -> None:
        """Bring in what other workers compiled, if anything will be compiled here at all; bounded, and never raises."""
        if judged is None or self._libraries is None:
            return
        if judged.outcome == "native":
            self._events.write(
                events.JitCacheUnneeded(reason=f"{judged.backend} has native code for every device here")
            )
            return
        if self._mode != "mirror":
            return
        from worker import gpu  # noqa: PLC0415 - most workers have nothing to compile
        from worker.jit_cache import JitCache  # noqa: PLC0415 - same
        from worker.jit_key import NoKey, jit_key  # noqa: PLC0415 - same

        self._events.write(events.HydrateStarted())
        try:
            key = jit_key(gpu.detect(self._environ), self._libraries / judged.backend / BACKEND_FILE)
        except NoKey as exc:
            self._events.write(events.HydrateFinished(done=False, reason=str(exc), files=0, size_bytes=0))
            return
        self._cache = JitCache(self._local, self._shared, key)
        outcome = self._cache.hydrate()
        if not outcome.done:
            # What this worker compiles beyond those of its image is kept on the volume all the same.
            baked = JitCache(self._local, BAKED_KERNELS, key).hydrate()
            outcome = baked if baked.done else outcome
        self._events.write(events.HydrateFinished(**asdict(outcome)))

    def keep_after_first_job(self) -> None:
        """Have what the driver compiles kept once the first job is over: its prompt has compiled what there is."""
        if self._cache is None:
            return
        once = threading.Lock()

        def heard(event: events.Event, _: int) -> None:
            if isinstance(event, events.JobFinished) and once.acquire(blocking=False):
                threading.Thread(target=self._persist, name="jit-cache", daemon=True).start()

        self._events.listen(heard)

    def _persist(self) -> None:
        if self._cache is None:
            return
        self._events.write(events.JitCachePersisted(**asdict(self._cache.persist())))
