"""The child process that holds one model: llama.cpp's own HTTP server, started with llama-server's flags."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence


def parse_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Read the flags Ollama gives llama-server, as far as they mean something here."""
    parser = argparse.ArgumentParser(prog="runner", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("-c", dest="context", type=int, required=True)
    parser.add_argument("-np", dest="slots", type=int, default=1)
    parser.add_argument("-b", dest="batch", type=int, default=0)
    parser.add_argument("-t", dest="threads", type=int, default=int(os.environ.get("LLAMA_ARG_THREADS") or 0))
    parser.add_argument("--embedding", action="store_true")
    parser.add_argument("--context-shift", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Load the model, print the server's address, and serve until stdin ends; return 1 when the load fails."""
    flags = parse_flags(argv)
    # Ctrl-C reaches the whole process group; a traceback from here would only be noise.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The engine holds the other end: when it dies, however it dies, this process has no reason to stay.
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    import xllamacpp  # noqa: PLC0415 - only this process may pay for loading llama.cpp

    params = xllamacpp.CommonParams()
    params.model.path = flags.model
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel = flags.context, flags.slots
    params.embedding, params.ctx_shift = flags.embedding, flags.context_shift
    params.verbosity, params.ui, params.offline = 4, False, True
    # A CPU has nothing to fit into and no kernels to warm up.
    params.fit_params, params.warmup = False, False
    if flags.batch:
        params.n_batch = flags.batch
    if flags.batch and flags.embedding:
        # Embeddings need the whole input in one physical batch.
        params.n_ubatch = flags.batch
    if flags.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = flags.threads
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        # llama.cpp has already said why on stderr.
        return 1
    print(server.listening_address, flush=True)
    threading.Event().wait()
    return 0


def _exit_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)
