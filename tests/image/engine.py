"""A Docker Engine of the tests' own, in private namespaces: when it is stopped, nothing of it is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

CACHE = Path(os.environ.get("IMAGE_TEST_CACHE") or Path.home() / ".cache" / "worker-image-test")
SUITE = "trixie"
PACKAGES = "ca-certificates,docker.io,docker-cli,docker-buildx,runc,iptables,iproute2,patchelf,procps"
START_LIMIT_S = 60.0
CGROUP_PARENT = "/worker-image-test"
# No bridge: containers have loopback only, or the machine's own network while an image is built.
_DOCKERD = (
    "dockerd --exec-root /run/docker --pidfile /run/docker.pid -H unix:///run/docker.sock --iptables=false "
    "--ip6tables=false --bridge=none --storage-driver=overlay2 --default-ulimit nofile=20000:20000 "
    f"--cgroup-parent={CGROUP_PARENT}"
)
# A chroot would not do: `docker exec` enters a container by the root of its mount namespace.
_INSIDE = f"""
root=$1 data=$2; shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$data" "$root/var/lib/docker"
for path; do mkdir -p "$root$path"; mount --bind "$path" "$root$path"; done
cp /etc/resolv.conf "$root/etc/resolv.conf"
cd "$root"
mkdir -p mnt/outside
pivot_root . mnt/outside
umount --lazy mnt/outside
exec chroot . {_DOCKERD}
"""


def missing() -> str:
    """Return what this machine lacks to run an engine, or nothing."""
    if os.geteuid() != 0:
        return "a Docker Engine of its own needs root"
    tools = ("mmdebstrap", "unshare", "nsenter", "mount", "pivot_root")
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def debian_tree(suite: str, packages: str, target: Path, *options: str) -> None:
    """Make a Debian tree, or a tar of one, at `target` unless it is there; it appears whole or not at all."""
    if target.exists():
        return
    part = target.with_name(f"part-{target.name}")
    shutil.rmtree(part, ignore_errors=True)
    part.unlink(missing_ok=True)
    command = [
        "nice",
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={packages}",
        *options,
        suite,
        str(part),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mmdebstrap {suite}: {done.stderr[-2000:]}")
    part.rename(target)


class Engine:
    """One dockerd and everything it starts. Paths in `shared` are the same inside as outside."""

    def __init__(self, shared: Sequence[Path], cache: Path = CACHE) -> None:
        """Prepare; nothing runs until it is entered."""
        self.cache = cache
        self.root = cache / f"engine-{SUITE}-{sha256(PACKAGES.encode()).hexdigest()[:8]}"
        self._shared = [str(path) for path in shared]
        self._unshare: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        """Start dockerd and wait until it answers; one engine a cache at a time."""
        data = self.cache / "data"
        data.mkdir(parents=True, exist_ok=True)
        self._lock = (self.cache / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        debian_tree(SUITE, PACKAGES, self.root)
        (self.root / "var/lib/docker").mkdir(exist_ok=True)
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        arguments = [str(self.root), str(data), *self._shared]
        self._log = (self.cache / "dockerd.log").open("wb")
        self._unshare = subprocess.Popen(
            [*namespaces, "sh", "-euc", _INSIDE, "engine", *arguments], stdout=self._log, stderr=subprocess.STDOUT
        )
        try:
            self._wait_answering(self._unshare)
        except BaseException:
            self._stop(self._unshare)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop dockerd; the end of its PID namespace ends whatever is left in it."""
        if self._unshare is not None:
            self._stop(self._unshare)

    def docker(
        self, *arguments: str, stdin: Any = None, check: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one docker command inside; its output is captured. Raises RuntimeError with the output."""
        done = self.inside("docker", *arguments, stdin=stdin, timeout_s=timeout_s)
        if check and done.returncode:
            raise RuntimeError(f"docker {' '.join(arguments)[:200]}: {done.stdout[-1500:]}{done.stderr[-6000:]}")
        return done

    def inside(self, *command: str, stdin: Any = None, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command in the engine's namespaces."""
        return subprocess.run(
            [*self.enter(), *command], stdin=stdin, capture_output=True, text=True, check=False, timeout=timeout_s
        )

    def enter(self) -> list[str]:
        """Return the command prefix that runs what follows inside."""
        return ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--root", "--wd=/"]

    def network_of(self, container: str) -> Path:
        """Return the network namespace of a running container, as a file to enter it by."""
        pid = self.docker("inspect", "--format", "{{.State.Pid}}", container).stdout.strip()
        return Path(f"/proc/{self._pid}/root/proc/{pid}/ns/net")

    def _wait_answering(self, unshare: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text(encoding="ascii").split()
            self._pid = int(children[0]) if children else 0
            if self._pid and self.inside("docker", "version").returncode == 0:
                return
            if unshare.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dockerd does not run: {(self.cache / 'dockerd.log').read_text()[-2000:]}")
            time.sleep(0.1)

    def _stop(self, unshare: subprocess.Popen[bytes]) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
        try:
            unshare.wait(30.0)
        except subprocess.TimeoutExpired:
            unshare.kill()
            unshare.wait()
        self._unshare = None
        self._log.close()
        self._lock.close()
        for group in Path("/sys/fs/cgroup").glob(f"**{CGROUP_PARENT}"):
            with contextlib.suppress(OSError):
                group.rmdir()
