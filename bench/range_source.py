"""A server of byte ranges that costs little: a thread a connection, sendfile, a rate for each connection if asked."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import sys
import threading
import time
from pathlib import Path

_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d+)\r\n", re.IGNORECASE)
_BURST_BYTES = 1 << 20


def main() -> int:
    """Serve one file on a free port, which is printed, until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--rate", type=float, default=0.0, help="bytes per second and connection; 0 is no limit")
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        print(listening.getsockname()[1], flush=True)
        threading.Thread(target=_accept, args=(listening, options.file, options.rate), daemon=True).start()
        sys.stdin.buffer.read()
    return 0


def _accept(listening: socket.socket, path: Path, rate: float) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, path, rate), daemon=True).start()


def _serve(connection: socket.socket, path: Path, rate: float) -> None:
    # A client that is done may leave in the middle of anything.
    with connection, path.open("rb") as file, contextlib.suppress(OSError):
        while head := _head(connection):
            _answer(connection, file.fileno(), head, rate)


def _answer(connection: socket.socket, fd: int, head: bytes, rate: float) -> None:
    size = os.fstat(fd).st_size
    asked = _RANGE.search(head)
    start, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, size)
    lines = (
        f"HTTP/1.1 {'206 Partial Content' if asked else '200 OK'}",
        f"Content-Length: {end - start}",
        f"Content-Range: bytes {start}-{end - 1}/{size}",
    )
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    _send(connection, fd, start, end, rate)


def _head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        data = connection.recv(4096)
        if not data:
            return b""
        head += data
    return head


def _send(connection: socket.socket, fd: int, start: int, end: int, rate: float) -> None:
    began_s, at = time.monotonic(), start
    while at < end:
        at += os.sendfile(connection.fileno(), fd, at, min(_BURST_BYTES, end - at) if rate else end - at)
        if rate and (early_s := began_s + (at - start) / rate - time.monotonic()) > 0:
            time.sleep(early_s)


if __name__ == "__main__":
    sys.exit(main())
