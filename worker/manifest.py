"""Ollama's store on disk: where a model's manifest lies, and whether everything it names is there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.names import ModelName


@dataclass(frozen=True)
class Layer:
    """One blob a manifest names: media type, digest as `sha256:<hex>`, size in bytes."""

    media_type: str
    digest: str
    size_bytes: int

    def path(self, models: Path) -> Path:
        """Return where the blob lies in the store at `models`."""
        return models / "blobs" / self.digest.replace(":", "-")


@dataclass(frozen=True)
class Manifest:
    """A model in the store: its config blob and its layers."""

    name: ModelName
    layers: tuple[Layer, ...]

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


def read(models: Path, name: ModelName) -> Manifest | None:
    """Return the manifest of `name` in the store at `models`, or None when there is none.

    Raises:
        ValueError: there is one and it cannot be understood.
    """
    path = models / "manifests" / name.path
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ValueError(f"{path.name}: {exc.strerror}") from exc
    fields: dict[str, Any] = body if isinstance(body, dict) else {}
    entries = [fields.get("config"), *(fields.get("layers") or [])]
    if not any(entries):
        raise ValueError(f"{path.name} holds no manifest")
    return Manifest(name, tuple(_layer(entry) for entry in entries if entry))


def _layer(entry: Any) -> Layer:
    try:
        return Layer(str(entry["mediaType"]), str(entry["digest"]), int(entry.get("size", 0)))
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"a layer without media type or digest: {entry!r:.80}") from exc
