"""The CUDA backends in Ollama's library directory: name, runtime, driver floor, and the modules inside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker import fatbin
from worker.environment import BACKEND_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from worker.device import Capability
    from worker.fatbin import Fatbin

# The oldest driver branch a CUDA runtime starts on (CUDA Toolkit release notes, minor version compatibility).
_FLOOR_OF_RUNTIME = {11: 450, 12: 525, 13: 580}
_ZSTD_FLOOR = 550  # older drivers cannot unpack zstd-compressed code
_OLLAMA_FLOOR_SINCE, _OLLAMA_FLOOR = (12, 4), 550  # Ollama assumes compressed code from this runtime on
_RUNTIME = re.compile(r"libcudart\.so\.(\d+)(?:\.(\d+))?")
_NAME = re.compile(r"cuda_v(\d+)")


@dataclass(frozen=True)
class Backend:
    """One directory Ollama can load: `name` is what OLLAMA_LLM_BACKEND_FILE takes; `problem` why it cannot be read."""

    name: str
    modules: tuple[Fatbin, ...] = ()
    runtime: tuple[int, int] | None = None
    problem: str = ""

    @property
    def driver_floor(self) -> int:
        """The oldest driver branch that can use this backend, as in 550; 0 when nothing limits it."""
        floors = [0]
        if self.runtime:
            # A runtime newer than this table needs at least what the newest known one needs.
            floors.append(_FLOOR_OF_RUNTIME.get(min(self.runtime[0], max(_FLOOR_OF_RUNTIME)), 0))
            if self.runtime >= _OLLAMA_FLOOR_SINCE:
                floors.append(_OLLAMA_FLOOR)
        if any(entry.compression == "zstd" for module in self.modules for entry in module.entries):
            floors.append(_ZSTD_FLOOR)
        return max(floors)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The compute capabilities it was compiled for, as SASS or PTX."""
        entries = (entry.architecture for module in self.modules for entry in module.entries)
        return frozenset((architecture.major, architecture.minor) for architecture in entries)

    def architectures(self, kind: fatbin.Kind) -> tuple[str, ...]:
        """Return the architectures there is code of `kind` for, oldest first, as in ("80", "90a")."""
        found = {entry.architecture for module in self.modules for entry in module.entries if entry.kind == kind}
        return tuple(str(architecture) for architecture in sorted(found))


def find(lib_dir: Path) -> list[Backend]:
    """Return the CUDA backends below `lib_dir` by name; one that cannot be read is there with its problem."""
    return [read(path.parent) for path in sorted(lib_dir.glob(f"*/{BACKEND_FILE}"))]


def read(directory: Path) -> Backend:
    """Return the backend in `directory`, without the stubs a device link leaves: they hold no kernels."""
    try:
        modules = fatbin.read(directory / BACKEND_FILE)
        runtime = _runtime(directory)
    except (fatbin.FatbinInvalid, OSError) as error:
        return Backend(directory.name, problem=f"cannot be read: {error}")
    return Backend(directory.name, tuple(module for module in modules if not module.empty), runtime)


def _runtime(directory: Path) -> tuple[int, int] | None:
    """Return the CUDA runtime (major, minor) that lies beside the library, or the one its directory is named for."""
    matches = [match for path in directory.iterdir() if (match := _RUNTIME.match(path.name))]
    versions = [(int(match[1]), int(match[2] or 0)) for match in matches]
    if not versions and (named := _NAME.fullmatch(directory.name)):
        versions = [(int(named[1]), 0)]
    return max(versions, default=None)
