"""A llama-server that claims a CUDA device and holds no model: what Ollama starts to discover and to load.

Reads FAKE_RUNNER_LOG (a file that gets one JSON line for each start and each look at /health) and FAKE_RUNNER_LOAD_S
(seconds a load takes). Which backend it has is said by GGML_BACKEND_PATH, which Ollama sets.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STARTED = time.monotonic()
LOAD_S = float(os.environ.get("FAKE_RUNNER_LOAD_S", "0"))
HAS_DEVICE = "cuda_" in os.environ.get("GGML_BACKEND_PATH", "")


def note(**facts: object) -> None:
    line = json.dumps(facts) + "\n"
    file = os.open(os.environ["FAKE_RUNNER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())  # one write, so that children of the same moment do not mix
    os.close(file)


class Runner(BaseHTTPRequestHandler):
    """Answers /health, not yet and then ready."""

    def do_GET(self) -> None:
        note(kind="health")
        ready = time.monotonic() - STARTED >= LOAD_S
        body = {"status": "ok"} if ready else {"error": {"code": 503, "message": "Loading model"}}
        content = json.dumps(body).encode()
        self.send_response(200 if ready else 503)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Stay silent: Ollama reads what a runner prints."""


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def list_devices() -> None:
    note(kind="list", backend=os.environ.get("GGML_BACKEND_PATH", ""))
    device = "CUDA0: NVIDIA H100 80GB HBM3 (81559 MiB, 81008 MiB free)" if HAS_DEVICE else "(none)"
    sys.stdout.write(f"Available devices:\n  {device}\n")


def show_system() -> None:
    note(kind="system", backend=os.environ.get("GGML_BACKEND_PATH", ""))
    if HAS_DEVICE:
        device = "Device 0: NVIDIA H100 80GB HBM3, compute capability 9.0, VMM: yes, VRAM: 81559 MiB"
        sys.stderr.write(f"ggml_cuda_init: found 1 CUDA devices:\n  {device}\n")
    sys.stderr.write("system_info: n_threads = 2 | CUDA : ARCHS = 800,900 |\n")
    sys.stderr.flush()
    time.sleep(30)  # a server without a model would wait for requests: Ollama kills it here


def serve() -> None:
    note(kind="load", argv=sys.argv[1:], fit_target=os.environ.get("LLAMA_ARG_FIT_TARGET"))
    ThreadingHTTPServer((option("--host"), int(option("--port"))), Runner).serve_forever()


if "--list-devices" in sys.argv:
    list_devices()
elif "--model" in sys.argv:
    serve()
else:
    show_system()
