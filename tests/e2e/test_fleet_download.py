"""Many workers start at once on one volume; the origin sees one download, whoever dies."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import tiny_gguf
from tests.fakes.range_server import RangeServer
from tests.fakes.s3_server import FakeS3
from worker import manifest
from worker.gguf_file import read
from worker.local.process import ROOT, wait_for
from worker.names import ModelName

WORKERS = 10
TERM_S = 1.5
LIMIT_S = 90.0
WEIGHTS = 3 << 20  # numbers, of 4 bytes each
CONNECTION_BYTES_PER_S = 4 << 20
URL = "s3://models/Fleet-Q8_0.gguf"


class Member:
    """A worker as a process, and the lines it has said so far."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "fakes" / "fleet_member.py"), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.said: list[dict[str, Any]] = []
        self.errors = ""
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def _read_errors(self) -> None:
        self.errors = self.process.stderr.read()

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def has_said(self, word: str) -> bool:
        return any(word in line for line in self.said)

    def wait(self) -> int:
        code = self.process.wait(LIMIT_S)
        self._close()
        return code

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    values = [float(n) for n in range(WEIGHTS)]
    return tiny_gguf.write(path, {"general.architecture": "llama"}, [("t", (WEIGHTS,), values)]).read_bytes()


@pytest.fixture
def origin(content: bytes) -> Iterator[RangeServer]:
    fake = FakeS3({"models": {"Fleet-Q8_0.gguf": content}}, signed=False)
    with RangeServer(fake.app, rate_bytes_per_s=CONNECTION_BYTES_PER_S) as server:
        yield server


@pytest.mark.parametrize("killed_at", [None, 0.10, 0.50, 0.99], ids=["nobody dies", "10 %", "50 %", "99 %"])
def test_a_fleet_downloads_once(tmp_path: Path, origin: RangeServer, content: bytes, killed_at: float | None) -> None:
    volume = tmp_path / "volume"
    with ExitStack() as stack:
        fleet = [Member(str(volume), origin.url, URL, str(TERM_S)) for _ in range(WORKERS)]
        for member in fleet:
            stack.callback(member.end)
        assert wait_for(lambda: all(member.has_said("ready") for member in fleet), LIMIT_S)
        origin.pause_at = int(killed_at * len(content)) if killed_at is not None else None
        for member in fleet:
            member.go()
        dead = kill_holder(fleet, origin) if killed_at is not None else None
        codes = {member: member.wait() for member in fleet}
        living = [member for member in fleet if member is not dead]
        errors = [member.errors for member in living if member.errors]
        assert not errors, errors[0]
        assert [codes[member] for member in living] == [0] * len(living)
        assert dead is None or codes[dead] == -signal.SIGKILL
        ends = [member.said[-1] for member in living]
        assert {end["placed"] for end in ends} == {"s3/models-fleet:q8_0"}
        assert sorted(end["source"] for end in ends) == ["object_store"] + ["volume"] * (len(living) - 1)
        # Those who waited were told how far the one who downloads is.
        waited = [member for member in living if member.said[-1]["source"] == "volume"]
        assert any(line.get("source") == "object_store" and "done" in line for m in waited for line in m.said)
    assert len(content) <= origin.sent_bytes <= 1.05 * len(content)
    check_volume(volume, content)


def kill_holder(fleet: list[Member], origin: RangeServer) -> Member:
    """Kill the worker that downloads when the origin has sent what it sends before it pauses."""
    assert wait_for(lambda: origin.sent_bytes >= (origin.pause_at or 0), LIMIT_S)
    (holder,) = [member for member in fleet if member.has_said("bringing")]
    holder.process.kill()
    holder.process.wait()
    origin.resumed.set()
    return holder


def check_volume(volume: Path, content: bytes) -> None:
    """See that the volume has the whole model and nothing besides."""
    made = manifest.read(volume, ModelName.parse("s3/models-fleet:q8_0"))
    assert made is not None
    assert made.lacks(volume) == []
    blob = made.layers[1].path(volume)
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == hashlib.sha256(content).hexdigest() == made.layers[1].hex
    read(blob).require_whole()
    assert [path for name in ("partial", "leases") for path in (volume / name).iterdir()] == []
