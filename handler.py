"""The worker's composition root: configuration, boot, RunPod's loop, stop."""

from __future__ import annotations

import time

STARTED_NS = time.time_ns()

import os  # noqa: E402 - the stamp above comes first: imports are part of what it measures
import sys  # noqa: E402
from contextlib import ExitStack, contextmanager  # noqa: E402
from typing import TYPE_CHECKING, NamedTuple  # noqa: E402

from worker import __version__, events, packages  # noqa: E402
from worker.environment import ignored  # noqa: E402
from worker.errors import BootError  # noqa: E402
from worker.folders import store, views  # noqa: E402
from worker.kernels import Kernels  # noqa: E402
from worker.launch import prepare  # noqa: E402
from worker.server import Server  # noqa: E402
from worker.stop_signal import StopSignal  # noqa: E402
from worker.view import View  # noqa: E402

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from worker.adapter.loop import Loop
    from worker.config import Config
    from worker.gateway.gateway import Gateway
    from worker.outset import Outset
    from worker.shelf import Shelf

# The platform counts a dead server's worker as running until it is gone; jobs get this long to fail cleanly.
LAST_WORDS_S = 1.0
# A boot that was told to stop notices at its next look at the server; one that looks no more is ended after this.
STOP_LIMIT_S = 10.0


class Front(NamedTuple):
    """Where work comes from: what has to be imported for it beside the boot, and what is run after that."""

    import_sdk: Callable[[], str] | None
    run: Callable[[Callable[[Loop | Gateway], None], Shelf], None]


def main() -> int:
    """Run one worker from start to end; return the exit code."""
    writer = events.EventWriter()
    exit_code = 0
    loops: list[Loop | Gateway] = []

    def end_loops() -> None:
        for loop in loops:
            loop.kill_worker(LAST_WORDS_S)

    def end_boot(number: signal.Signals) -> None:
        writer.write(events.WorkerStopping(reason=number.name))
        end_loops()
        # Whatever the boot waits for comes from the server.
        server.stop()
        time.sleep(STOP_LIMIT_S)
        os._exit(0)

    server = Server(writer, on_exit=end_loops)
    stop = StopSignal(end_boot)
    stop.listen()
    try:
        serve(writer, server, loops, stop)
    except BootError as exc:
        if not stop.received:
            exit_code = exc.exit_code
            writer.write(events.BootFailed(code=exc.code, message=exc.sentence(), exit_code=exit_code))
            sys.stderr.write(f"worker: {exc.sentence()}\n")
    finally:
        stop.ignore()
        server.stop()
    writer.write(events.WorkerStopped(exit_code=exit_code))
    return exit_code


def serve(writer: events.EventWriter, server: Server, loops: list[Loop | Gateway], stop: StopSignal) -> None:
    """Boot and run jobs until the platform ends the worker; raise BootError when it cannot serve."""
    environ = dict(os.environ)
    start_ns = environ.get("WORKER_START_NS", "")
    if start_ns.isdecimal():
        writer.write(events.ContainerStarted(), at_ns=int(start_ns))
    writer.write(events.WorkerStarted(pid=os.getpid(), version=__version__), at_ns=STARTED_NS)

    def on_start(loop: Loop | Gateway) -> None:
        loops.append(loop)
        if server.ended or stop.received:
            loop.kill_worker(LAST_WORDS_S)

    with ExitStack() as opened:
        try:
            launch = prepare(environ)
            kernels = Kernels(environ, launch.libraries, writer)
            view = View(views(environ) / str(os.getpid()), store(environ))
            opened.callback(view.close)
            server.spawn(launch.argv, launch.environ(environ) | view.open() | kernels.variables())
        except BootError:
            # Even when the server cannot start: every mistake in the configuration is told at once.
            _configuration(environ, writer)
            raise
        from worker.boot import Boot, Started  # noqa: PLC0415 - imported while the server starts
        from worker.branch import branch  # noqa: PLC0415 - same

        # Only now: it would take turns with that import, which more depends on.
        config = branch("configuration", lambda: _configuration(environ, writer))
        for text in ignored(environ):
            writer.write(events.SettingIgnored(text=text))
        front = branch("front", lambda: opened.enter_context(_front(config.result(), writer, server)))
        opened.callback(front.exception)
        boot = Boot(Started(_outset(environ, config), server, view, kernels, writer), config)
        found = boot.run(importer=lambda: front.result().import_sdk, judge=lambda: launch.judge(environ))
        front.result().run(on_start, boot.shelf(found))
    server.check()


def _outset(environ: dict[str, str], config: Future[Config]) -> Outset:
    from worker.names import NameInvalid  # noqa: PLC0415 - imported while the server starts
    from worker.outset import outset  # noqa: PLC0415 - same

    try:
        return outset(environ)
    except NameInvalid:
        # The configuration has the same mistake, and tells it with all others.
        config.result()
        raise


@contextmanager
def _front(config: Config, writer: events.EventWriter, server: Server) -> Iterator[Front]:
    """Open what brings the work: the gateway answers during the boot already."""
    if config.mode == "load_balancer":
        from worker.gateway.gateway import Gateway  # noqa: PLC0415 - each mode loads only its own

        with Gateway(config, writer, is_gone=lambda: server.ended) as gateway:
            yield Front(None, lambda on_start, shelf: gateway.run(on_start, shelf.resident))
    else:
        from worker.adapter import sdk  # noqa: PLC0415 - imported while the server starts
        from worker.gateway import metrics_port  # noqa: PLC0415 - same

        with metrics_port.opened(config.port_metrics, writer):
            yield Front(sdk.import_sdk, lambda on_start, shelf: sdk.run(config, writer, shelf, on_start=on_start))


def _configuration(environ: dict[str, str], writer: events.EventWriter) -> Config:
    from worker.config import load  # noqa: PLC0415 - pydantic takes as long to import as Ollama to answer

    config = load(environ)
    writer.write(events.ConfigLoaded(model=config.model, concurrency=config.concurrency))
    return config


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as missing:
        sys.exit(f"worker: {packages.missing(missing)}")
