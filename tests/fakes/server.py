"""A server with Ollama's API, no model, and every fault worth testing: `python tests/fakes/server.py serve`.

It listens on OLLAMA_HOST. `fake_script.Script` describes the knobs, as does `--help`. POST /fake/script turns them
while it runs. GET /fake/stats tells what happened: requests by path, their last bodies, answers finished and cancelled,
tokens, loads, process ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from aiohttp import web
from fake_api import Fake
from fake_script import Script

CHILD = "import time; time.sleep(120)"


def listen(address: str) -> socket.socket:
    """Bind and listen on `host:port`: from here on the kernel accepts connections."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return socket.create_server((host or "127.0.0.1", int(port)), backlog=128)


def log(line: str) -> None:
    """Write a line where Ollama logs."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


async def serve(script: Script, fake: Fake, listener: socket.socket) -> None:
    """Answer until SIGTERM, unless that is ignored."""
    stop = asyncio.Event()
    if not script.ignore_sigterm:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runner = web.AppRunner(fake.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    if not script.never_answer:
        await web.SockSite(runner, listener).start()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stop.wait(), script.exit_after_s or None)
        await runner.cleanup()
        listener.close()
        return
    os._exit(script.exit_code)


def main(argv: list[str]) -> int:
    """Read the script from the environment and serve."""
    if argv != ["serve"]:
        sys.stdout.write(f"{__doc__}\n{Script.__doc__}\n")
        return 2
    try:
        script = Script.from_environment(os.environ)
    except ValueError as error:
        log(str(error))
        return 2
    if script.ignore_sigterm:
        # A child inherits this, as runners of a server that is stuck do.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fake = Fake(script, Path(os.environ.get("OLLAMA_MODELS", "/nonexistent")))
    if script.child:
        fake.child = subprocess.Popen([sys.executable, "-c", CHILD])
    time.sleep(script.listen_delay_s)
    listener = listen(os.environ.get("OLLAMA_HOST", "127.0.0.1:11434"))
    log(f'level=INFO source=server.py:1 msg="Listening on {os.environ.get("OLLAMA_HOST")}"')
    for number in range(script.log_lines):
        log(f"line {number} ".ljust(script.log_line_bytes, "."))
    time.sleep(script.answer_delay_s)
    asyncio.run(serve(script, fake, listener))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
