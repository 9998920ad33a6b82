"""The boot flow: one fork, one join, and a model that is resident before the first job is taken."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker import events
from worker.branch import branch
from worker.errors import ServerExited, ServerTimeout, WeightsUnavailable
from worker.location import Located
from worker.outset import Outset
from worker.residency import Residency, require_gpu
from worker.server import Server
from worker.view import View
from worker.weights import Weights

if TYPE_CHECKING:
    from worker.bringer import Bringer
    from worker.choice import Choice
    from worker.config import Config
    from worker.kernels import Kernels
    from worker.residency import Resident
    from worker.shelf import Shelf

Importer = Callable[[], str]
JOIN_INTERVAL_S = 0.005
# Hydrating is bounded by itself; this is for what is not.
KERNELS_LIMIT_S = 120.0


@dataclass(frozen=True)
class Started:
    """What is there when a boot begins: a server that was started, what it is shown, and who is told."""

    start: Outset
    server: Server
    view: View
    kernels: Kernels
    writer: events.EventWriter


class Boot:
    """One boot. The configuration is still being checked when it begins: nothing that is urgent waits for that."""

    def __init__(self, started: Started, config: Future[Config]) -> None:
        """Prepare to make the model of `started` resident."""
        self._started = started
        self._server = started.server
        self._events = started.writer
        self._config = config
        self._residency = Residency(started.start.server_url)
        self._weights = Weights(started.start, started.view, started.writer)
        self._answered = threading.Event()
        self._sdk: Future[None] | None = None

    def run(self, *, importer: Callable[[], Importer | None], judge: Callable[[], Choice | None]) -> Located:
        """Make the model resident; import the SDK and judge the GPU backend meanwhile. Return the model.

        `importer` returns what imports the SDK, once it is known whether one is needed.

        Raises:
            BootError: the worker cannot serve; the server may still be running and is the caller's to stop.
        """
        judged = branch("judge", lambda: self._judge(judge))
        kernels = branch("kernels", lambda: self._started.kernels.make_ready(judged.result()))
        weights = self._fork_weights(judged)

        def probed() -> None:
            # From the first look at the server on and not earlier: the import keeps the interpreter busy, and a server
            # that answers already would wait for its load request.
            if self._sdk is None:
                self._sdk = branch("sdk", lambda: self._import_sdk(importer))

        self._wait_answering(probed)
        self._join(weights, "weights", lambda config: config.weights_timeout_s)
        self._join(kernels, "kernels", lambda _: KERNELS_LIMIT_S)
        self._require_usable(judged.result())
        found = weights.result()
        resident = self._load(found.name)
        config = self._config.result()
        if not config.allow_cpu:
            require_gpu(resident)
        self._weights.loaded(config)
        if config.prime:
            self._prime(found.name, config)
        if self._sdk is not None:
            self._join(self._sdk, "SDK import", lambda config: config.server_timeout_s)
        self._server.check()
        self._events.write(events.BootReady(model=found.name))
        self._started.kernels.keep_after_first_job()
        branch("use", lambda: self._tell_use(found))
        return found

    def shelf(self, found: Located) -> Shelf:
        """Return the models that jobs may name, with `found` the resident one."""
        from worker.shelf import Shelf  # noqa: PLC0415 - not needed before the model is resident

        pull = self._config.result().pull_on_demand
        return Shelf(found.name, self._started.start, pull=pull, bring=lambda wanted: self.bringer().bring(wanted))

    def bringer(self) -> Bringer:
        """Return who brings models into the store, as the configuration says."""
        from worker.bringer import Bringer  # noqa: PLC0415 - most boots find the model and need no source

        return Bringer(
            self._started.start,
            self._config.result(),
            self._events,
            ready=self._wait_ready,
            check=self._server.check,
        )

    def _fork_weights(self, judged: Future[Choice | None]) -> Future[Located]:
        found = self._weights.find()
        if found is not None and self._weights.near(found):
            done: Future[Located] = Future()
            done.set_result(found)
            return done

        def make_ready() -> Located:
            # Before anything is downloaded: a GPU this image cannot use will not become usable.
            self._require_usable(judged.result())
            return self._weights.make_ready(found, self._config.result(), self.bringer)

        return branch("weights", make_ready)

    def _judge(self, judge: Callable[[], Choice | None]) -> Choice | None:
        found = judge()
        if found is not None:
            self._events.write(
                events.GpuJudged(
                    backend=found.backend, outcome=found.outcome, reason=found.reason, upstream=found.upstream
                )
            )
        return found

    def _require_usable(self, judged: Choice | None) -> None:
        if judged is not None and judged.outcome == "unusable" and not self._config.result().allow_cpu:
            judged.require_usable()

    def _import_sdk(self, importer: Callable[[], Importer | None]) -> None:
        import_sdk = importer()
        if import_sdk is not None:
            self._events.write(events.SdkImportStarted())
            self._events.write(events.SdkImportFinished(version=import_sdk()))

    def _wait_answering(self, probed: Callable[[], None]) -> None:
        """Wait for the first HTTP 200; call `probed` after every look at the server."""
        version: list[str] = []

        def answered() -> bool:
            found = self._residency.version()
            if found is not None:
                version.append(found)
            probed()
            return found is not None

        # Without a configuration there is no limit yet, and one with mistakes ends the wait.
        self._server.wait_until(lambda: answered() or self._config.done(), "server start", math.inf)
        if not version:
            self._server.wait_until(answered, "server start", self._config.result().server_timeout_s)
        self._events.write(events.ServerAnswered(version=version[0]))
        self._answered.set()

    def _wait_ready(self) -> None:
        """Return once the server answers, for whoever needs it before the load."""
        limit_s = self._config.result().server_timeout_s
        if not self._answered.wait(limit_s):
            raise ServerTimeout("server start", limit_s, self._server.tail_hint())

    def _join(self, waited: Future[Located] | Future[None], stage: str, limit_s: Callable[[Config], float]) -> None:
        """Wait for a branch, unless the server ends or something else fails before it, or its limit has passed."""
        began_s = time.monotonic()
        ended = threading.Event()
        waited.add_done_callback(lambda _: ended.set())
        while not ended.wait(JOIN_INTERVAL_S):
            self._server.check()
            for other in (self._config, self._sdk):
                if other is not None and other.done():
                    other.result()
            if self._config.done() and time.monotonic() - began_s > limit_s(self._config.result()):
                raise ServerTimeout(stage, limit_s(self._config.result()), f"The stage {stage!r} hangs")
        with self._server.blamed(ServerExited, WeightsUnavailable):
            waited.result()

    def _load(self, name: str) -> Resident:
        self._events.write(events.LoadStarted(model=name))
        with self._server.blamed(ServerExited, WeightsUnavailable):
            # The limit is asked for when the request is under way already.
            resident = self._residency.load(name, lambda: self._config.result().load_timeout_s)
        self._events.write(
            events.LoadFinished(
                model=name,
                size_bytes=resident.size_bytes,
                size_vram_bytes=resident.size_vram_bytes,
                context_length=resident.context_length,
            )
        )
        return resident

    def _tell_use(self, found: Located) -> None:
        """Let whoever prunes the store see that the model is in use, for as long as this process lives."""
        from worker import pruning  # noqa: PLC0415 - not needed before the model is resident
        from worker.store import Store  # noqa: PLC0415 - same

        store = Store(found.models)
        store.mark_used(found.manifest)
        lease = None if self._weights.near(found) else pruning.hold(store, found.manifest)
        if lease is not None:
            with lease.kept():
                threading.Event().wait()

    def _prime(self, name: str, config: Config) -> None:
        self._events.write(events.PrimeStarted())
        self._residency.prime(name, config.load_timeout_s)
        self._events.write(events.PrimeFinished())
