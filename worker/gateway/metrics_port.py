"""The worker's figures on a port of their own, where it does not answer HTTP otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from worker.events import EventWriter
from worker.gateway.http_thread import ANYWHERE, HttpThread, Site

if TYPE_CHECKING:
    from aiohttp import web


def site(port: int, writer: EventWriter) -> Site:
    """Return the site that tells what `writer` writes, from its beginning on."""

    def application() -> web.Application:
        # In the thread, so that the boot does not wait for it.
        from worker.gateway.application import metrics_only  # noqa: PLC0415
        from worker.metrics import Metrics  # noqa: PLC0415

        metrics = Metrics()
        writer.listen(metrics.observe)
        return metrics_only(metrics)

    return Site(port, application)


@contextmanager
def opened(port: int | None, writer: EventWriter, *, host: str = ANYWHERE) -> Iterator[None]:
    """Answer on `port` inside the block, or do nothing without one.

    Raises:
        ConfigInvalid: the port cannot be listened on.
    """
    if port is None:
        yield
        return
    thread = HttpThread([site(port, writer)], host=host)
    thread.start()
    try:
        yield
    finally:
        thread.close()
