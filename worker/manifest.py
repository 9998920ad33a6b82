"""Ollama's store on disk: where a model's manifest lies, what it names, and whether all of that is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.names import ModelName, NameInvalid

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_PREFIX = "application/vnd.ollama.image."
# What the worker notes in manifests it writes; the server passes over fields it does not know.
ORIGIN = "worker.origin"
FILE = "worker.file"
PROJECTOR_LEFT_OUT = "worker.projector-left-out"
_DIGEST = re.compile(r"sha256[:-][0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Layer:
    """One blob a manifest names: media type, digest as `sha256:<hex>`, size in bytes."""

    media_type: str
    digest: str
    size_bytes: int

    @property
    def kind(self) -> str:
        """`config`, or what Ollama calls the layer: model, projector, template, and so on."""
        return "config" if self.media_type == CONFIG_TYPE else self.media_type.removeprefix(LAYER_PREFIX)

    @property
    def hex(self) -> str:
        """The digest without its algorithm."""
        return self.digest[-64:].lower()

    def path(self, models: Path) -> Path:
        """Return where the blob lies in the store at `models`."""
        return models / "blobs" / self.digest.replace(":", "-")

    def body(self) -> dict[str, Any]:
        """Return the layer as a manifest has it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size_bytes}


@dataclass(frozen=True)
class Manifest:
    """A model in the store: its config blob and its layers, and what the worker noted when it registered it."""

    name: ModelName
    layers: tuple[Layer, ...]
    notes: Mapping[str, str] = field(default_factory=dict)

    def layer(self, kind: str) -> Layer | None:
        """Return the last layer of `kind`, the one that counts, or None."""
        return next((layer for layer in reversed(self.layers) if layer.kind == kind), None)

    @property
    def size_bytes(self) -> int:
        """All blobs together, each counted once."""
        return sum({layer.digest: layer.size_bytes for layer in self.layers}.values())

    def lacks(self, models: Path) -> list[str]:
        """Return one phrase for each blob that is absent or has the wrong size; empty means the model is complete."""
        problems = []
        for layer in self.layers:
            try:
                size_bytes = layer.path(models).stat().st_size
            except OSError:
                problems.append(f"{layer.digest[:19]} is not in the store")
                continue
            if layer.size_bytes and size_bytes != layer.size_bytes:
                problems.append(f"{layer.digest[:19]} has {size_bytes:,} of {layer.size_bytes:,} bytes")
        return problems

    def body(self) -> bytes:
        """Return the manifest as it is written into the store."""
        config = [layer.body() for layer in self.layers if layer.kind == "config"]
        others = [layer.body() for layer in self.layers if layer.kind != "config"]
        value = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config[0] if config else {}}
        return json.dumps(
            value | {"layers": others} | ({"annotations": dict(self.notes)} if self.notes else {})
        ).encode()


def path_of(models: Path, name: ModelName) -> Path:
    """Return where the manifest of `name` lies in the store at `models`, whether or not it does."""
    return models / "manifests" / name.path


def spelled(models: Path, name: ModelName) -> ModelName | None:
    """Return `name` as the store spells it, its own spelling first, or None when there is no such manifest.

    Ollama compares names without regard to case.
    """
    if path_of(models, name).is_file():
        return name
    found: list[str] = []
    for part in name.path.parts:
        here = models.joinpath("manifests", *found)
        try:
            entries = sorted(entry.name for entry in here.iterdir())
        except OSError:
            return None
        fitting = part if part in entries else next((e for e in entries if e.lower() == part.lower()), None)
        if fitting is None:
            return None
        found.append(fitting)
    return ModelName(*found)


def in_the_spelling_of(models: Path, name: ModelName) -> ModelName:
    """Return `name` with each part in the spelling that the store at `models` has for it, its own where it has that.

    Ollama looks a name up part by part, whatever model a part belongs to: were one model's tag `Q8_0` and another's
    `q8_0`, it would find either by chance.
    """
    parts = list(name.path.parts)
    known = [path.relative_to(models / "manifests").parts for path in (models / "manifests").glob("*/*/*/*")]
    for at, part in enumerate(parts):
        spellings = {other[at] for other in known}
        if part not in spellings:
            parts[at] = min((other for other in spellings if other.lower() == part.lower()), default=part)
    return ModelName(*parts)


def read(models: Path, name: ModelName) -> Manifest | None:
    """Return the manifest of `name` in the store at `models`, or None when there is none.

    Raises:
        ValueError: there is one and it cannot be understood.
    """
    path = path_of(models, name)
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise ValueError(f"{path.name}: {exc.strerror}") from exc
    return parse(name, data)


def parse(name: ModelName, data: bytes) -> Manifest:
    """Understand the bytes of a manifest; raise ValueError."""
    body = json.loads(data)
    fields: dict[str, Any] = body if isinstance(body, dict) else {}
    entries = [fields.get("config"), *(fields.get("layers") or [])]
    if not any(entries):
        raise ValueError(f"{name.short} has a manifest that names nothing")
    notes = fields.get("annotations")
    kept = {str(key): str(value) for key, value in notes.items()} if isinstance(notes, dict) else {}
    return Manifest(name, tuple(_layer(entry) for entry in entries if entry), kept)


def every(models: Path) -> Iterator[Manifest]:
    """Yield each manifest of the store at `models` that can be understood, in order of name."""
    base = models / "manifests"
    for path in sorted(base.glob("*/*/*/*")):
        try:
            found = read(models, ModelName(*path.relative_to(base).parts).checked())
        except (NameInvalid, ValueError):
            continue
        if found is not None:
            yield found


def _layer(entry: Any) -> Layer:
    try:
        layer = Layer(str(entry["mediaType"]), str(entry["digest"]), int(entry.get("size", 0)))
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"a layer without media type or digest: {entry!r:.80}") from exc
    # A digest is part of a path: anything else would lead out of the store.
    if not _DIGEST.fullmatch(layer.digest):
        raise ValueError(f"{layer.digest!r:.80} is no digest")
    return layer
