"""One model file made resident as llama.cpp does it, landed first or not; run as a program it prints one JSON line.

Clock: starts when the file is known and everything is imported; stops when every byte is mapped (emulation), the model
is loaded (libllama), or every byte was read (thrown away).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from worker import arrival
from worker.opened import direct_latency_s
from worker.pace import first_method
from worker.readers import BlockCopy


def emulated(path: Path) -> None:
    """Do what llama.cpp's mapping of a model does: sequential advice, a populated mapping, a last advice."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        with contextlib.closing(mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)) as view:
            view.madvise(mmap.MADV_WILLNEED)


def thrown_away(path: Path) -> None:
    """Read as a landing does and keep nothing: no landing can take less time than this."""
    method = first_method(direct_latency_s(path))
    with Path("/dev/null").open("wb") as nowhere:
        BlockCopy(path, nowhere.fileno(), path.stat().st_size, lambda *_: None).run(method, lambda: None)


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


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--folder", type=Path, help="land in this folder when that pays")
    parser.add_argument("--how", choices=("mapped", "libllama", "thrown-away"), default="mapped")
    options = parser.parse_args()
    read = {"mapped": lambda: emulated, "libllama": libllama, "thrown-away": lambda: thrown_away}[options.how]()
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
