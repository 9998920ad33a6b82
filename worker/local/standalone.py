"""The image without Runpod: the queue's API and one worker in a container on somebody's own machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from worker.local.process import ROOT
from worker.local.queue import LocalQueue

ANYWHERE = "0.0.0.0"  # noqa: S104 - a container's port is published on purpose, or not at all


def serve(environ: Mapping[str, str], *, host: str, port: int) -> int:
    """Answer Runpod's client API on `port` with one worker behind it until SIGTERM or SIGINT; return its exit code.

    `environ` is the worker's, WORKER_API_KEY in it is the key clients must send.
    """
    with LocalQueue(host=host, port=port, api_key=environ.get("WORKER_API_KEY") or None) as queue:
        sys.stderr.write(f"Runpod's API: {queue.api_url}/{queue.endpoint_id}   OpenAI's API: {queue.openai_url}\n")
        worker = subprocess.Popen(
            # WORKER_START_NS is this container's start already: start.sh keeps it.
            [str(ROOT / "start.sh")],
            env={**environ, **queue.worker_env()},
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: worker.send_signal(received))
        return worker.wait()


def main() -> int:
    """Serve on the port a container publishes."""
    return serve(os.environ, host=ANYWHERE, port=int(os.environ.get("PORT") or "8000"))


if __name__ == "__main__":
    sys.exit(main())
