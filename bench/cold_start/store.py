"""The store the runs load from: the small model, a store at hand, or either behind a slow mount."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import latfuse
from worker import gguf_file, manifest, storage
from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.manifest import Manifest
from worker.names import ModelName

MODEL = "smollm2:135m"


class NoModel(Exception):
    """The store does not have the model; the message says what it has."""


@dataclass(frozen=True)
class ColdStore:
    """A store as the server sees it, and the model in it; `latency_us` is what a read waits, 0 for a plain folder."""

    models: Path
    model: Manifest
    latency_us: int = 0

    @property
    def described(self) -> str:
        """What kind of place it is."""
        if self.latency_us:
            return f"FUSE, {self.latency_us / 1000:g} ms a request"
        return storage.place(self.models).filesystem

    @property
    def distant(self) -> bool:
        """Whether a model would be landed from here."""
        return storage.place(self.models).distant

    @property
    def projector(self) -> bool:
        """Whether the model sees images: with a projector of its own, or with one inside the model's file."""
        if self.model.layer("projector") is not None:
            return True
        layer = self.model.layer("model")
        try:
            return layer is not None and gguf_file.read(layer.path(self.models)).embedded_projector
        except (gguf_file.GgufInvalid, OSError):
            return False

    def forget(self) -> None:
        """Take the model out of the page cache."""
        for layer in self.model.layers:
            with contextlib.suppress(OSError), layer.path(self.models).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def opened(home: Path, models: Path | None, name: str, latency_us: int = 0) -> Iterator[ColdStore]:
    """Yield the store at `models`, or one with the small model below `home`, behind a slow mount if `latency_us`.

    Raises:
        NoModel: `name` is not in it, or no name was given and there is not exactly one model.
        Unavailable: this machine has no FUSE, or not the rights for it.
    """
    if models is None:
        models, name = home / "models", name or MODEL
        if name == MODEL:
            register_gguf(models, MODEL, smollm2_gguf())
    found = _model(models, name)
    if not latency_us:
        yield ColdStore(models, found)
        return
    with latfuse.LatencyFuse(latfuse.build(home), models, home / "slow", latency_us=latency_us) as fuse:
        yield ColdStore(fuse.mount, found, latency_us)


def _model(models: Path, name: str) -> Manifest:
    every = list(manifest.every(models))
    wanted = [found for found in every if not name or found.name == ModelName.parse(name)]
    if len(wanted) != 1:
        there = ", ".join(found.name.short for found in every) or "no model"
        raise NoModel(f"{f'{name!r} is not in the store' if name else 'say --model'}: it has {there}")
    if lacks := wanted[0].lacks(models):
        raise NoModel(f"{wanted[0].name.short} is not whole: {'; '.join(lacks)}")
    return wanted[0]
