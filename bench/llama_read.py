"""One model file made resident as llama.cpp does it, landed first or not; run as a program it prints one JSON line.

Clock: starts when the file is known and everything is imported; stops when every byte is mapped (emulation) or the
model is loaded (libllama).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from worker import arrival


def emulated(path: Path) -> None:
    """Do what llama.cpp's mapping of a model does: sequential advice, a populated mapping, a last advice."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        with contextlib.closing(mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)) as view:
            view.madvise(mmap.MADV_WILLNEED)


def libllama() -> Callable[[Path], None]:
    """Return the loading of a model by the real llama.cpp, with its default way of reading."""
    import xllamacpp  # noqa: PLC0415 - only this way needs it

    def load(path: Path) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.hostnames, params.port = ["127.0.0.1"], 0
        params.n_ctx, params.n_parallel = 256, 1
        params.fit_params, params.warmup, params.ui = False, False, False
        params.verbosity = -1
        loaded.append(xllamacpp.Server(params))

    loaded: list[object] = []
    return load


def _warm_free_memory(size_bytes: int) -> None:
    """Have pages for the file at hand: write one of its size and remove it.

    The host of a virtual machine takes back memory that was free for some seconds, and giving it anew is slower than
    most storage: that would be measured instead.
    """
    block = bytes(4 << 20)
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(-(-size_bytes // len(block))):
            file.write(block)


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--folder", type=Path, help="land in this folder when that pays")
    parser.add_argument("--libllama", action="store_true")
    options = parser.parse_args()
    read = libllama() if options.libllama else emulated
    _warm_free_memory(options.path.stat().st_size)
    began_s = time.perf_counter()
    path, method = options.path, "in place"
    if options.folder is not None:
        arrived = arrival.bring(path, [options.folder])
        path = arrived.path
        method = arrived.landed.method if arrived.landed else "in place"
        print(arrived.reason, file=sys.stderr)
    near_s = time.perf_counter()
    read(path)
    took_s = time.perf_counter() - began_s
    print(json.dumps({"took_s": round(took_s, 3), "near_s": round(near_s - began_s, 3), "method": method}), flush=True)
    # The loaded model's threads have nothing to finish.
    os._exit(0)


if __name__ == "__main__":
    main()
