"""A mounted filesystem that is slow or broken as asked: tests/fakes/latfuse.c."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

from bench.programs import Unavailable, compile_c, end, require, start_ready

SOURCE = Path(__file__).resolve().parents[1] / "tests" / "fakes" / "latfuse.c"
OFF = -1


def build(folder: Path) -> Path:
    """Compile the filesystem into `folder`; raise Unavailable where it cannot run."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Unavailable("/dev/fuse cannot be used here")
    require("umount")
    return compile_c(SOURCE, folder / "latfuse", "fuse3")


class LatencyFuse:
    """The directory `backing` seen through the filesystem at `mount`, while the context lasts."""

    def __init__(self, program: Path, backing: Path, mount: Path, **settings: int) -> None:
        """Prepare; `settings` are those latfuse.c explains."""
        self.mount = mount
        self._command = [str(program), str(backing), str(mount), *(f"{name}={n}" for name, n in settings.items())]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> LatencyFuse:  # noqa: PYI034 - no Self before Python 3.11
        """Mount it."""
        self.mount.mkdir(parents=True, exist_ok=True)
        self._process = start_ready(self._command)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unmount it, whatever state it is in."""
        self.vanish()
        # Detached: a reader that still has a file open must not keep it from going.
        subprocess.run(["umount", "--lazy", str(self.mount)], check=True, timeout=20)  # noqa: S607 - the machine's own

    def set(self, **settings: int) -> None:
        """Change settings while it runs."""
        for name, number in settings.items():
            os.setxattr(self.mount, f"user.latfuse.{name}", str(number).encode())

    def stats(self) -> tuple[int, int, int]:
        """Return read requests, their bytes, and the most at one time, since the last time this was asked."""
        requests, size_bytes, most = os.getxattr(self.mount, "user.latfuse.stats").split()
        return int(requests), int(size_bytes), int(most)

    def vanish(self) -> None:
        """Kill it, as when a volume's client dies: what is open there fails from now on."""
        if self._process is not None:
            self._process.kill()
            end(self._process)
