"""What the server is started with, decided in milliseconds: command, variables, CUDA backend."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worker.environment import BACKEND_FILE, BACKEND_VARIABLE, Setting, server_command, server_environment, settings

if TYPE_CHECKING:
    from worker.choice import Choice


@dataclass(frozen=True)
class Launch:
    """A command and the variables set for it; `libraries` is where the server looks for backends."""

    argv: list[str]
    settings: list[Setting]
    libraries: Path | None
    backends: tuple[str, ...]
    judged: Choice | None = None

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


def _libraries(program: str, environ: Mapping[str, str]) -> Path | None:
    """Return `../lib/ollama` beside the program, which is where Ollama looks, or None when it is not there."""
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None:
        return None
    directory = Path(found).resolve().parent.parent / "lib" / "ollama"
    return directory if directory.is_dir() else None
