"""`bench transfer`: one file over HTTP ranges into a preallocated, verified file, against what the connection can give.

Clock: starts when address, size and digest are known; stops when every byte is in the file and its sha256 is checked.
`limit` is the same number of connections in a process that throws the bytes away: no file, no digest, no HTTP library;
`written` is that with the bytes put into a preallocated file. `one` is this worker's transfer over a single connection.
`verified` is `written` with the sha256 of the file taken at the same time by another process, from memory and waiting
for nothing: what these cores can give to a transfer that verifies, since a digest cannot be shared out among cores.
`fetched` is the worker's transfer without its digest, to be held against `written`; the worker itself never goes
without.
Rounds are interleaved, figures are medians; server and client share the machine's cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from bench.held_memory import held
from bench.programs import beside
from worker import known_digest, transfer
from worker.digest import TrailingDigest
from worker.http_range import Origin
from worker.progress import Meter
from worker.resumable import Resumable
from worker.transfer import USUAL, Terms

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m worker bench transfer"
SIZE_BYTES = 1 << 30
GOAL = 0.8
LIMIT_S = 300.0
# Object storage gives a connection 50 to 90 MB/s, whatever the client does. Without a cap the cores are the limit:
# server, digest and writing share them.
CASES = {"50 MB/s a connection": 50e6, "90 MB/s a connection": 90e6, "no cap": 0.0}
WAYS = ("limit", "written", "verified", "one", "fetched", "worker")


def run(out: Path | None, *, size_bytes: int = SIZE_BYTES, rounds: int = 3) -> int:
    """Measure every case, print the table, keep the figures below `out`; return an exit code."""
    with tempfile.TemporaryDirectory(prefix="transfer.") as name:
        folder = Path(name)
        sha256 = _write(folder / "file", size_bytes)
        rows = [_result(case, rate, folder, sha256, rounds) for case, rate in CASES.items()]
    for row in rows:
        print(_line(row))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "transfer.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def _result(case: str, rate: float, folder: Path, sha256: str, rounds: int) -> dict[str, Any]:
    size_bytes = (folder / "file").stat().st_size
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    with _served(folder / "file", rate) as port:
        for number in range(rounds + 1):
            for way in WAYS:
                with held(size_bytes, folder):
                    took_s = _once(way, port, folder, size_bytes, sha256)
                # The first round fills the caches.
                if number:
                    taken[way].append(took_s)
    speeds = {way: size_bytes / statistics.median(values) / 1e9 for way, values in taken.items()}
    return {
        "case": case,
        "command": f"{COMMAND} --rounds {rounds}",
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}",
        "file_bytes": size_bytes,
        **{f"{way}_gb_per_s": round(speed, 2) for way, speed in speeds.items()},
        # What the cores leave of the limit when they write and verify, and what the worker reaches of both.
        "bound": round(min(1.0, speeds["verified"] / speeds["limit"]), 2),
        "worker_to_limit": round(speeds["worker"] / speeds["limit"], 2),
        "worker_to_verified": round(speeds["worker"] / speeds["verified"], 2),
        "fetched_to_written": round(speeds["fetched"] / speeds["written"], 2),
        "worker_to_one": round(speeds["worker"] / speeds["one"], 2),
        "rounds_s": {way: [round(value, 3) for value in values] for way, values in taken.items()},
    }


@contextmanager
def _served(file: Path, rate: float) -> Iterator[int]:
    with beside("bench.range_source", str(file), "--rate", str(rate)) as port:
        yield int(port)


def _once(way: str, port: int, folder: Path, size_bytes: int, sha256: str) -> float:
    command = [sys.executable, "-m", "bench.transfer", way, str(port), str(folder), str(size_bytes), sha256]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return float(done.stdout)


def main() -> int:
    """Transfer the file once and print the seconds it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("size_bytes", type=int)
    parser.add_argument("sha256")
    options = parser.parse_args()
    print(_took_s(options))
    return 0


def _took_s(options: argparse.Namespace) -> float:
    if options.way == "limit":
        return _raw(options.port, options.size_bytes, USUAL.connections)
    with Resumable(options.folder / "target", "file", options.size_bytes) as file:
        if options.way == "written":
            took_s = _raw(options.port, options.size_bytes, USUAL.connections, file.fd)
        elif options.way == "verified":
            took_s = _verified(options, file.fd)
        elif options.way == "fetched":
            with mock.patch.object(transfer, "TrailingDigest", _NoDigest):
                took_s = _fetched(options, file, USUAL, sha256="")
        else:
            took_s = _fetched(options, file, Terms(connections=1) if options.way == "one" else USUAL, options.sha256)
        file.discard()
    return took_s


def _fetched(options: argparse.Namespace, file: Resumable, terms: Terms, sha256: str) -> float:
    began_s = time.perf_counter()
    origin = Origin(lambda: f"http://127.0.0.1:{options.port}/file", options.size_bytes)
    transfer.fetch(origin, file, Meter(options.size_bytes), sha256=sha256, terms=terms)
    return time.perf_counter() - began_s


class _NoDigest(TrailingDigest):
    """Knows when everything was written, and hashes nothing."""

    def _follow(self) -> None:
        while self._hashed_bytes < self._size_bytes:
            ready = self._complete_after(self._hashed_bytes)
            if ready is None:
                break
            self._hashed_bytes = ready
        os.close(self._fd)


def _verified(options: argparse.Namespace, fd: int) -> float:
    # Not started anew: an interpreter's start is no part of a digest.
    digest = multiprocessing.get_context("fork").Process(
        target=known_digest.computed, args=(options.folder / "file",), daemon=True
    )
    began_s = time.perf_counter()
    digest.start()
    _raw(options.port, options.size_bytes, USUAL.connections, fd)
    digest.join()
    if digest.exitcode:
        raise RuntimeError(f"the digest ended with {digest.exitcode}")
    return time.perf_counter() - began_s


def _raw(port: int, size_bytes: int, connections: int, fd: int | None = None) -> float:
    """Read the file over so many connections, into `fd` if it is given."""
    share = -(-size_bytes // connections)
    threads = [
        threading.Thread(target=_read, args=(port, start, min(start + share, size_bytes), fd))
        for start in range(0, size_bytes, share)
    ]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began_s


def _read(port: int, start: int, end: int, fd: int | None) -> None:
    buffer = memoryview(bytearray(1 << 20))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET /file HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{end - 1}\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        while start < end and (count := connection.recv_into(buffer[: end - start])):
            if fd is not None:
                os.pwrite(fd, buffer[:count], start)
            start += count


def _write(path: Path, size_bytes: int) -> str:
    digest, block = hashlib.sha256(), os.urandom(4 << 20)
    with path.open("wb") as file:
        for start in range(0, size_bytes, len(block)):
            part = block[: size_bytes - start]
            file.write(part)
            digest.update(part)
    return digest.hexdigest()


def _line(row: dict[str, Any]) -> str:
    verdict = "reached" if row["worker_to_limit"] >= GOAL else "missed"
    return (
        f"{row['case']:24} limit {row['limit_gb_per_s']:.2f} GB/s, one connection {row['one_gb_per_s']:.2f}, "
        f"worker {row['worker_gb_per_s']:.2f}: {row['worker_to_limit']:.2f} of the limit (goal {GOAL:g} {verdict}), "
        f"{row['worker_to_verified']:.2f} of what the cores can verify, {row['worker_to_one']:.1f} x one connection; "
        f"without digest {row['fetched_to_written']:.2f} of what can be written"
    )


if __name__ == "__main__":
    sys.exit(main())
