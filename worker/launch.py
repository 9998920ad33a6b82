"""What the server is started with, decided in milliseconds: command, variables, CUDA backend."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from worker import cpu_quota
from worker.environment import (
    BACKEND_FILE,
    BACKEND_VARIABLE,
    FIT_VARIABLE,
    THREADS_VARIABLE,
    Setting,
    Unset,
    own,
    server_command,
    server_environment,
    settings,
)

if TYPE_CHECKING:
    from worker.choice import Choice


# One of these is there where a driver is; looking for it takes microseconds, asking the driver milliseconds.
DRIVER = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"), Path("/dev/dxg"))


@dataclass(frozen=True)
class Launch:
    """A command and the variables set for it; `libraries` is where the server looks for backends.

    `unset` are variables that are set on other machines and not here.
    """

    argv: list[str]
    settings: list[Setting]
    libraries: Path | None
    backends: tuple[str, ...]
    judged: Choice | None = None
    unset: tuple[Unset, ...] = ()

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the server's whole environment."""
        return server_environment(inherited) | {setting.name: setting.value for setting in self.settings}

    def judge(self, environ: Mapping[str, str]) -> Choice | None:
        """Return the verdict on the backends for the devices here, or None without any CUDA backend.

        Reads the libraries' headers and asks the driver: some 20 ms, more when the image is cold.
        """
        if self.judged is not None or self.libraries is None or not self.backends:
            return self.judged
        from worker import backend, choice, gpu  # noqa: PLC0415 - not needed on a machine without backends

        return choice.choose(
            backend.find(self.libraries), gpu.detect(environ), environ.get(BACKEND_VARIABLE, "").strip()
        )


def prepare(environ: Mapping[str, str]) -> Launch:
    """Decide how the server of `environ` is started.

    With one CUDA backend in the image there is nothing to weigh: it is named, and judged while the server starts.
    With several the choice comes first, since the server reads it once.

    Raises:
        ConfigInvalid: the command is no command line.
    """
    launch = _with_backend(environ)
    found = [_threads(environ), _fit(launch, environ)]
    chosen = [*launch.settings, *(setting for setting in found if isinstance(setting, Setting))]
    return replace(launch, settings=chosen, unset=tuple(unset for unset in found if isinstance(unset, Unset)))


def _with_backend(environ: Mapping[str, str]) -> Launch:
    argv = server_command(environ)
    libraries = _libraries(argv[0], environ)
    names = tuple(sorted(path.parent.name for path in libraries.glob(f"*/{BACKEND_FILE}"))) if libraries else ()
    launch = Launch(argv, settings(environ), libraries, names)
    if not names or environ.get(BACKEND_VARIABLE, "").strip():
        return launch
    if len(names) == 1:
        return _with(launch, names[0], "the only CUDA backend of this image")
    verdict = launch.judge(environ)
    if verdict is None or not verdict.backend:
        return Launch(argv, launch.settings, libraries, names, verdict)
    return _with(launch, verdict.backend, verdict.reason, verdict)


def _with(launch: Launch, name: str, reason: str, judged: Choice | None = None) -> Launch:
    chosen = [*launch.settings, Setting(BACKEND_VARIABLE, name, reason)]
    return Launch(launch.argv, chosen, launch.libraries, launch.backends, judged)


def _threads(environ: Mapping[str, str]) -> Setting | Unset:
    """Return how many threads the runner starts: it does not know of a limit on the container's processor time."""
    return own(environ, THREADS_VARIABLE) or cpu_quota.threads(cpu_quota.quota_cpus(), len(os.sched_getaffinity(0)))


def _fit(launch: Launch, environ: Mapping[str, str]) -> Setting | Unset:
    """Return whether the runner looks for a placement of the model; it takes one more pass over the model's head."""
    if mine := own(environ, FIT_VARIABLE):
        return mine
    if not launch.backends or not any(path.exists() for path in DRIVER):
        return Unset(FIT_VARIABLE, "the runner looks for a placement: no NVIDIA device is visible to a CUDA backend")
    from worker import fit  # noqa: PLC0415 - not needed on a machine without a device

    return fit.setting(launch.environ(environ))


def _libraries(program: str, environ: Mapping[str, str]) -> Path | None:
    """Return `../lib/ollama` beside the program, which is where Ollama looks, or None when it is not there."""
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None:
        return None
    directory = Path(found).resolve().parent.parent / "lib" / "ollama"
    return directory if directory.is_dir() else None
