"""The worker of a load-balancing endpoint: healthy or not from its first moment, and its requests until its last."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from worker import events
from worker.config import Config
from worker.gateway import metrics_port
from worker.gateway.health import Health
from worker.gateway.http_thread import ANYWHERE, HttpThread, Site
from worker.stop_signal import NUMBERS

if TYPE_CHECKING:
    from aiohttp import web
    from typing_extensions import Self

    from worker.gateway.passage import Passage
    from worker.metrics import Metrics


class Gateway:
    """Answers health from `__enter__` on, and requests while `run` runs, which is the main thread's last work."""

    def __init__(
        self, config: Config, writer: events.EventWriter, *, is_gone: Callable[[], bool], host: str = ANYWHERE
    ) -> None:
        """Bind the ports of `config`; `is_gone` says whether the server has ended.

        Raises:
            ConfigInvalid: a port cannot be listened on.
        """
        self._config = config
        self._events = writer
        self._health = Health(is_gone)
        self._passage: Passage | None = None
        self._limit_s = config.drain_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()
        sites = [Site(config.port, self._application)]
        if config.port_health is not None and config.port_health != config.port:
            sites.append(Site(config.port_health, self._health_application))
        if config.port_metrics is not None and config.port_metrics != config.port:
            sites.append(metrics_port.site(config.port_metrics, writer))
        self._thread = HttpThread(sites, host=host)

    def __enter__(self) -> Self:
        """Begin to answer health."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        self._health.stop()
        self._thread.close()

    def run(self, on_start: Callable[[Gateway], None], model: str) -> None:
        """Let requests through until a signal or `kill_worker`, then let those under way finish.

        `model` is the server's name of the resident one, which is looked after when the worker was frozen.

        Raises:
            RuntimeError: the thread that answers has ended.
        """
        self._thread.submit(self._look_after(model)).result()
        asyncio.run(self._until_told(on_start))

    def kill_worker(self, limit_s: float | None = None) -> None:
        """Take no more requests; what is under way may go on for `limit_s` seconds. Safe from any thread."""
        self._limit_s = self._limit_s if limit_s is None else limit_s
        self._health.stop()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._told.set)

    async def _until_told(self, on_start: Callable[[Gateway], None]) -> None:
        self._loop = asyncio.get_running_loop()
        for number in NUMBERS:
            self._loop.add_signal_handler(number, self._on_signal, number)
        on_start(self)
        self._health.become_resident()
        self._events.write(events.LoopStarted(concurrency=self._config.concurrency))
        try:
            await self._told.wait()
            await asyncio.wrap_future(self._thread.submit(self._drain()))
        finally:
            # A second signal must not end the process before its children.
            for number in NUMBERS:
                self._loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

    async def _look_after(self, model: str) -> None:
        if self._passage is not None:
            self._passage.look_after(model, self._config.load_timeout_s)

    async def _drain(self) -> None:
        if self._passage is not None:
            await self._passage.drain(self._limit_s)

    def _application(self) -> web.Application:
        from worker.gateway import application  # noqa: PLC0415 - in the thread, so that the boot does not wait for it

        made, self._passage = application.of_server(self._config, self._events, self._health, self._metrics())
        return made

    def _metrics(self) -> Metrics | None:
        """Return figures to tell beside the API, or None where they have a port of their own."""
        if self._config.port_metrics not in {None, self._config.port}:
            return None
        from worker.metrics import Metrics  # noqa: PLC0415 - in the thread, as above

        metrics = Metrics()
        self._events.listen(metrics.observe)
        return metrics

    def _health_application(self) -> web.Application:
        from worker.gateway import application  # noqa: PLC0415 - in the thread, as above

        return application.health_only(self._config.health_path, self._health)

    def _on_signal(self, number: signal.Signals) -> None:
        self._events.write(events.WorkerStopping(reason=number.name))
        self.kill_worker()
