"""A worker in the order most Ollama workers have: wait for the server in half seconds, import the SDK, load by job.

Run as a program it is the comparison in `bench boot`; nothing of the worker is used except its server settings.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import requests

from worker.config import load
from worker.environment import server_command, server_environment

POLL_S = 0.5


def main() -> None:
    """Serve jobs until SIGTERM."""
    # Until the SDK has handlers of its own: the server must not outlive this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    config = load(os.environ)
    server = subprocess.Popen(
        server_command(os.environ),
        env=server_environment(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not _answers(config.server_url):
            time.sleep(POLL_S)
        import runpod  # noqa: PLC0415 - the order is what is compared

        def handler(job: dict[str, Any]) -> Iterator[Any]:
            body = {"model": config.model, **job["input"]}
            with requests.post(f"{config.server_url}/api/chat", json=body, stream=True, timeout=600) as reply:
                yield from map(json.loads, reply.iter_lines())

        runpod.serverless.start({"handler": handler, "return_aggregate_stream": True})
    finally:
        server.terminate()
        server.wait()


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/api/version", timeout=1).ok
    except requests.RequestException:
        return False


if __name__ == "__main__":
    main()
