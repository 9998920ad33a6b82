"""The worker's composition root: configuration, boot, RunPod's loop, stop."""

from __future__ import annotations

import time

STARTED_NS = time.time_ns()

import os  # noqa: E402 - the stamp above comes first: imports are part of what it measures
import signal  # noqa: E402
import sys  # noqa: E402
from typing import TYPE_CHECKING, NoReturn  # noqa: E402

from worker import __version__, events  # noqa: E402
from worker.errors import BootError  # noqa: E402
from worker.launch import prepare  # noqa: E402
from worker.server import Server  # noqa: E402

if TYPE_CHECKING:
    from worker.adapter.loop import Loop
    from worker.config import Config

# The platform counts a dead server's worker as running until it is gone; jobs get this long to fail cleanly.
LAST_WORDS_S = 1.0


class Stopped(Exception):
    """SIGTERM or SIGINT came before the loop was there to handle it."""


def main() -> int:
    """Run one worker from start to end; return the exit code."""
    writer = events.EventWriter()
    exit_code = 0
    loops: list[Loop] = []

    def end_loops() -> None:
        for loop in loops:
            loop.kill_worker(LAST_WORDS_S)

    server = Server(writer, on_exit=end_loops)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        serve(writer, server, loops)
    except BootError as exc:
        exit_code = exc.exit_code
        writer.write(events.BootFailed(code=exc.code, message=exc.sentence(), exit_code=exit_code))
        sys.stderr.write(f"worker: {exc.sentence()}\n")
    except Stopped as exc:
        writer.write(events.WorkerStopping(reason=str(exc)))
    finally:
        # From here on a second signal must not interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server.stop()
    writer.write(events.WorkerStopped(exit_code=exit_code))
    return exit_code


def serve(writer: events.EventWriter, server: Server, loops: list[Loop]) -> None:
    """Boot and run jobs until the platform ends the worker; raise BootError when it cannot serve."""
    environ = dict(os.environ)
    start_ns = environ.get("WORKER_START_NS", "")
    if start_ns.isdecimal():
        writer.write(events.ContainerStarted(), at_ns=int(start_ns))
    writer.write(events.WorkerStarted(pid=os.getpid(), version=__version__), at_ns=STARTED_NS)
    try:
        launch = prepare(environ)
        server.spawn(launch.argv, launch.environ(environ))
    finally:
        # Even when the server cannot start: every mistake in the configuration is told at once.
        config = _configuration(environ, writer)
    from worker.adapter import sdk  # noqa: PLC0415 - imported while the server starts
    from worker.boot import boot  # noqa: PLC0415 - same

    boot(
        config,
        server=server,
        writer=writer,
        import_sdk=sdk.import_sdk,
        judge=lambda: launch.judge(environ),
    )

    def on_start(loop: Loop) -> None:
        loops.append(loop)
        if server.ended:
            loop.kill_worker(LAST_WORDS_S)

    sdk.run(config, writer, on_start=on_start)
    server.check()


def _configuration(environ: dict[str, str], writer: events.EventWriter) -> Config:
    from worker.config import load  # noqa: PLC0415 - pydantic takes as long to import as Ollama to answer

    config = load(environ)
    writer.write(events.ConfigLoaded(model=config.model, concurrency=config.concurrency))
    return config


def _stop(number: int, _: object) -> NoReturn:
    raise Stopped(signal.Signals(number).name)


if __name__ == "__main__":
    sys.exit(main())
