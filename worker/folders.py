"""Where things lie on the worker's disks, as the environment says; pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Where the Dockerfile puts a model that is part of the image.
BAKED = Path("/opt/ollama/models")
# Where an image may have kernels that `python -m worker bake` packed.
BAKED_KERNELS = Path("/opt/ollama/jit-cache")


def home(environ: Mapping[str, str]) -> Path:
    """Return the folder of what the worker keeps on the container's own disk."""
    return Path(environ.get("HOME", "").strip() or "/root") / ".ollama"


def views(environ: Mapping[str, str]) -> Path:
    """Return the folder of the links that servers take for their stores; never shared between containers."""
    return Path(environ.get("TMPDIR", "").strip() or "/tmp") / f"worker-views-{os.getuid()}"  # noqa: S108 - by user


def volume(environ: Mapping[str, str]) -> Path:
    """Return where the network volume is mounted if there is one."""
    return Path(environ.get("WORKER_VOLUME", "").strip() or "/runpod-volume")


def kernels(environ: Mapping[str, str]) -> Path:
    """Return the folder of the packed kernels that workers share."""
    return volume(environ) / "jit-cache"


def store(environ: Mapping[str, str]) -> Path:
    """Return the store that is filled: start.sh chose it, or the user did."""
    models = environ.get("OLLAMA_MODELS", "").strip()
    return Path(models) if models else home(environ) / "models"


def stores(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return Ollama's stores in the order they are searched, the one that is filled first."""
    found = (store(environ), BAKED, volume(environ) / "ollama" / "models", home(environ) / "models")
    return tuple(dict.fromkeys(found))
