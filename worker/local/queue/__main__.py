"""`python -m worker.local.queue`: the queue as a process, with the environment of its worker on standard output."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys

from worker.local.queue import Limits, LocalQueue


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM and return 0, or 1 when the port cannot be had."""
    options = _parser().parse_args(argv)
    limits = Limits(take_hold_s=options.hold, stop_hold_s=options.hold)
    # Blocked before the server's thread exists, so that only sigwait below ever sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    queue = LocalQueue(host=options.host, port=options.port, limits=limits, api_key=options.api_key)
    try:
        queue.start()
    except (OSError, OverflowError) as error:
        print(f"cannot listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 1
    for name, value in queue.worker_env(options.worker).items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"# run jobs at {queue.api_url}/{queue.endpoint_id}, OpenAI clients at {queue.openai_url}", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    queue.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker.local.queue", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for a free one (%(default)s)")
    parser.add_argument("--worker", default="worker-1", help="worker id in the printed environment (%(default)s)")
    parser.add_argument("--api-key", help="the key clients and workers must send; without it everybody is let in")
    parser.add_argument("--hold", type=float, default=Limits.take_hold_s, help="seconds to hold a poll (%(default)s)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
