"""The image without Runpod: every API of a worker on one port of somebody's own machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from aiohttp import web

from worker import events
from worker.config import Config, load
from worker.errors import BootError, ConfigInvalid
from worker.gateway import application
from worker.gateway.health import Health
from worker.gateway.passage import Passage
from worker.local.overheard import relay
from worker.local.process import ROOT
from worker.local.queue import Limits, LocalQueue
from worker.metrics import Metrics

ANYWHERE = "0.0.0.0"  # noqa: S104 - a container's port is published on purpose, or not at all
PORT = 8000
# What the queue remembers of its worker's calls, bodies included: nobody asks, and a container runs for weeks.
KEPT_CALLS = 100


class Direct:
    """The server's own API beside the queue's, as a load-balancing endpoint has it: same routes, same key."""

    def __init__(self, config: Config, *, is_gone: Callable[[], bool]) -> None:
        """Prepare; `is_gone` says whether the worker has ended."""
        self._config = config
        self._events = events.EventWriter()
        self._health = Health(is_gone)
        self._metrics = Metrics()
        # Both the requests' events and the worker's are counted, each from a thread of its own.
        self._counting = threading.Lock()
        self._events.listen(self._count)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._passage: Passage | None = None

    def application(self) -> web.Application:
        """Return what answers every path that is not the queue's; to be called inside the loop that serves it."""
        self._loop = asyncio.get_running_loop()
        made, self._passage = application.of_server(self._config, self._events, self._health, self._metrics)
        return made

    def hear(self, event: events.Event, at_ns: int) -> None:
        """Take in an event of the worker."""
        if isinstance(event, events.LoopStarted):
            self._health.become_resident()
        self._count(event, at_ns)

    def drain(self) -> None:
        """Take no more requests, and wait for those under way as long as the configuration allows."""
        self._health.stop()
        if self._loop is not None and self._passage is not None:
            asyncio.run_coroutine_threadsafe(self._passage.drain(self._config.drain_timeout_s), self._loop).result()

    def _count(self, event: events.Event, at_ns: int) -> None:
        with self._counting:
            self._metrics.observe(event, at_ns)


def serve(environ: Mapping[str, str], *, host: str) -> int:
    """Answer Runpod's client API and the server's own until SIGTERM or SIGINT; return the worker's exit code.

    `environ` is the worker's; PORT in it is where it is listened, WORKER_API_KEY the key clients must send.

    Raises:
        ConfigInvalid: the environment is wrong, or the port cannot be had.
    """
    # As such an endpoint: what is asked for here is HTTP; the worker below reads the rest as a queue's.
    config = load({**environ, "WORKER_MODE": "load_balancer"})
    worker: subprocess.Popen[str] | None = None
    # One that is not there yet is booting.
    direct = Direct(config, is_gone=lambda: worker is not None and worker.poll() is not None)
    limits = Limits(kept_calls=KEPT_CALLS)
    port = config.port if environ.get("PORT", "").strip() else PORT
    queue = LocalQueue(host=host, port=port, limits=limits, api_key=config.api_key, beside=direct.application)
    with ExitStack() as opened:
        try:
            opened.enter_context(queue)
        except (OSError, OverflowError) as exc:
            raise ConfigInvalid(f"port {port} cannot be listened on: {exc}", "Set PORT to a free one") from exc
        sys.stderr.write(
            f"Ollama's and OpenAI's APIs: {queue.base_url} and {queue.base_url}/v1   "
            f"Runpod's: {queue.api_url}/{queue.endpoint_id} and {queue.openai_url}\n"
        )
        # WORKER_START_NS is this container's start already: start.sh keeps it.
        below = {**environ, **queue.worker_env(), "WORKER_MODE": "queue"}
        with subprocess.Popen(
            [str(ROOT / "start.sh")], env=below, stdout=subprocess.PIPE, text=True, errors="backslashreplace"
        ) as worker:
            _end_with_signals(direct, worker)
            if worker.stdout is not None:
                relay(worker.stdout, sys.stdout, direct.hear)
            return worker.wait()


def _end_with_signals(direct: Direct, worker: subprocess.Popen[str]) -> None:
    """On the first signal let requests finish, then the worker: its end is the server's."""

    def end(received: int) -> None:
        direct.drain()
        worker.send_signal(received)

    def on_signal(received: int, _: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=end, args=(received,)).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def main() -> int:
    """Serve on the port a container publishes."""
    try:
        return serve(os.environ, host=ANYWHERE)
    except BootError as exc:
        sys.stderr.write(f"worker: {exc.sentence()}\n")
        return exc.exit_code
