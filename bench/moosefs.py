"""A real MooseFS, the filesystem of Runpod's network volumes: master, chunk server and client over a delayed link."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from bench.programs import Unavailable, compile_c, end, require, start_ready

LINK_SOURCE = Path(__file__).resolve().parent / "native" / "delay_link.c"
SERVER_IP, CLIENT_IP = "10.77.0.2", "10.77.0.1"
START_LIMIT_S = 60.0
# An empty MooseFS: what its package ships as metadata.mfs.empty.
EMPTY_METADATA = b"MFSM NEW"
MASTER = """WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = {data}
EXPORTS_FILENAME = {folder}/exports.cfg
"""
CHUNK_SERVER = """WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = {data}
HDD_CONF_FILENAME = {folder}/disks.cfg
MASTER_HOST = {server}
BIND_HOST = {server}
"""


def build(folder: Path) -> Path:
    """Compile the delayed link into `folder`; raise Unavailable where a MooseFS cannot run."""
    require("mfsmaster", "mfschunkserver", "mfsmount", "ip", "nsenter", "umount")
    for device in ("/dev/fuse", "/dev/net/tun"):
        if not os.access(device, os.R_OK | os.W_OK):
            raise Unavailable(f"{device} cannot be used here")
    return compile_c(LINK_SOURCE, folder / "delay_link")


class MooseFs:
    """A MooseFS whose files lie in `folder`, and its client's mounts, while the context lasts.

    Server and client are in network namespaces of their own; `rtt_ms` is the round trip between them.
    """

    def __init__(self, link: Path, folder: Path, *, rtt_ms: float, mounts: int = 1) -> None:
        """Prepare a cluster with `mounts` independent clients."""
        self.mounts = [folder / f"mount{i}" for i in range(mounts)]
        self._link = link
        self._folder = folder
        self._rtt_ms = rtt_ms
        self._stack = ExitStack()

    def __enter__(self) -> MooseFs:  # noqa: PYI034 - no Self before Python 3.11
        """Start it and wait until the mounts can be written to."""
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unmount and end everything; the data in `folder` stays."""
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        self._configure()
        server, client = f"mfs-server-{os.getpid()}", f"mfs-client-{os.getpid()}"
        for name in (server, client):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
        self._connect(stack, server, client)
        for program, file in (("mfsmaster", "master.cfg"), ("mfschunkserver", "chunk.cfg")):
            self._spawn(stack, server, [program, "-f", "-c", str(self._folder / file), "start"])
        for mount in self.mounts:
            mount.mkdir(parents=True, exist_ok=True)
            self._spawn(stack, client, ["mfsmount", str(mount), "-f", "-H", SERVER_IP, "-o", "mfsdelayedinit"])
            stack.callback(subprocess.run, ["umount", "--lazy", str(mount)], check=False, stderr=subprocess.DEVNULL)
            _wait_writable(mount)

    def _connect(self, stack: ExitStack, server: str, client: str) -> None:
        """Join the namespaces: what comes from the server at once, what goes there a whole round trip later.

        To whom asks and waits it is all the same which way the time is spent. The delay is a process that shares its
        cores with what is measured, and what the server sends is nearly everything.
        """
        peer = ("peer", "name", "back0", "netns", client)
        _run("ip", "-n", server, "link", "add", "back0", "type", "veth", *peer)
        there = "back0"
        if self._rtt_ms:
            there = "delay0"
            delay_us = round(self._rtt_ms * 1000)
            stack.callback(end, start_ready([str(self._link), server, client, str(delay_us)]))
        for name, own, other, device in (
            (server, SERVER_IP, CLIENT_IP, "back0"),
            (client, CLIENT_IP, SERVER_IP, there),
        ):
            # What comes over one device is answered over the other.
            _inside(name, "sh", "-c", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done")
            for link in {"lo", "back0", there}:
                mtu = () if link == "lo" else ("mtu", "65520")
                _run("ip", "-n", name, "link", "set", link, *mtu, "up")
            _run("ip", "-n", name, "addr", "add", own, "peer", other, "dev", device)

    def _configure(self) -> None:
        values = {"folder": self._folder, "data": self._folder / "data", "server": SERVER_IP}
        for name in ("data", "disk"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        metadata = self._folder / "data" / "metadata.mfs"
        if not metadata.exists():
            metadata.write_bytes(EMPTY_METADATA)
        for name, text in (
            ("exports.cfg", "* / rw,alldirs,maproot=0\n"),
            ("disks.cfg", f"{self._folder}/disk\n"),
            ("master.cfg", MASTER.format(**values)),
            ("chunk.cfg", CHUNK_SERVER.format(**values)),
        ):
            (self._folder / name).write_text(text)

    def _spawn(self, stack: ExitStack, name_space: str, command: list[str]) -> None:
        # Not `ip netns exec`: that would hide the mount in a mount namespace.
        with (self._folder / f"{command[0]}.log").open("a") as log:
            process = subprocess.Popen(
                _entering(name_space, command),
                stdout=log,
                stderr=log,
                text=True,
                # A Ctrl-C in the terminal is for this program alone: it ends the others in order.
                start_new_session=True,
            )
        stack.callback(end, process)


def _entering(name_space: str, command: Sequence[str]) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{name_space}", *command]


def _inside(name_space: str, *command: str) -> None:
    _run(*_entering(name_space, command))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


def _wait_writable(mount: Path) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    probe = mount / f".probe.{os.getpid()}"
    while True:
        try:
            if os.path.ismount(mount):
                probe.write_bytes(b"x" * 4096)
                probe.unlink()
                return
        except OSError:
            pass
        if time.monotonic() > deadline_s:
            raise Unavailable("MooseFS does not become writable; see its logs")
        time.sleep(0.2)
