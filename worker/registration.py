"""A GGUF made a model of a store without being rewritten: blobs, config, template and, last, the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker import gguf_file, known_digest
from worker.gguf_file import GgufFile
from worker.manifest import CONFIG_TYPE, FILE, LAYER_PREFIX, ORIGIN, PROJECTOR_LEFT_OUT, Layer, Manifest
from worker.names import ModelName
from worker.progress import Meter
from worker.store import Store
from worker.template import require_balanced

MODEL_TYPE = f"{LAYER_PREFIX}model"
PROJECTOR_TYPE = f"{LAYER_PREFIX}projector"
# What `ollama create` sets by architecture: renderer, parser, parameters. Others are served by their own template.
_DIALECTS: dict[str, tuple[str, str, dict[str, list[str]]]] = {
    "gemma4": ("gemma4", "gemma4", {"stop": ["<turn|>"]}),
    "laguna": ("laguna", "laguna", {}),
    "nemotron_h": ("nemotron-3-nano", "nemotron-3-nano", {}),
    "nemotron_h_moe": ("nemotron-3-nano", "nemotron-3-nano", {}),
    "nemotron_h_omni": ("nemotron-3-nano", "nemotron-3-nano", {}),
}


@dataclass(frozen=True)
class Registered:
    """A model that is in a store now, and a sentence for each thing its user should know."""

    manifest: Manifest
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Registration:
    """What is to become a model: a GGUF file, its digest where it is known, and what goes with it.

    `template` is Go template text, "" for the GGUF's own. `skip_projector` says that there is a projector and that it
    is left out; it need not be given then. `origin` and `file` say where the GGUF came from; the manifest notes them.
    """

    model: Path
    sha256: str = ""
    projector: Path | None = None
    projector_sha256: str = ""
    template: str = ""
    skip_projector: bool = False
    origin: str = ""
    file: str = ""

    def into(self, store: Store, name: ModelName, metered: Callable[[int], Meter] = Meter) -> Registered:
        """Register as `name`; nothing of it is visible before it is whole.

        `metered` makes a meter for each pass over so many bytes; most registrations need none.

        Raises:
            gguf_file.GgufInvalid: a file is no GGUF, one part of several, or cut off; the projector is none.
            TemplateInvalid: the template is plainly broken.
            NoRoom, Damaged, Halted, OSError: as Store.adopt raises them.
        """
        require_balanced(self.template)
        head = _whole(self.model)
        # Both files before either is linked or copied.
        if self.projector is not None and not self.skip_projector:
            _require_projector(self.projector)
        layers = [_adopted(store, self.model, self.sha256, MODEL_TYPE, metered)]
        if self.projector is not None and not self.skip_projector:
            layers.append(_adopted(store, self.projector, self.projector_sha256, PROJECTOR_TYPE, metered))
        if self.template:
            layers.append(store.put(self.template.encode(), f"{LAYER_PREFIX}template"))
        if parameters := _DIALECTS.get(head.architecture, ("", "", {}))[2]:
            layers.append(store.put(json.dumps(parameters).encode(), f"{LAYER_PREFIX}params"))
        config = store.put(json.dumps(_config(head, layers, template=self.template)).encode(), CONFIG_TYPE)
        model = store.publish(Manifest(name, (config, *layers), self._notes()))
        return Registered(model, self._warnings(head))

    def _notes(self) -> dict[str, str]:
        left_out = {PROJECTOR_LEFT_OUT: "true"} if self.skip_projector else {}
        return {ORIGIN: self.origin or str(self.model), **({FILE: self.file} if self.file else {}), **left_out}

    def _warnings(self, head: GgufFile) -> tuple[str, ...]:
        warnings = []
        if not (self.template or head.chat_template or head.pooling or head.architecture in _DIALECTS):
            warnings.append(
                f"{self.model.name} has no chat template: messages are sent as they are; set OLLAMA_TEMPLATE"
            )
        if self.skip_projector and head.embedded_projector:
            warnings.append(f"{self.model.name} has its projector inside: only the server can leave it out")
        return tuple(warnings)


def redressed(store: Store, found: Manifest, *, template: str, skip_projector: bool) -> Registered | None:
    """Register a whole model again with another template or projector; None when it has not got the projector wanted.

    The large blobs stay as they are, and nothing is read over a network.

    Raises:
        As Registration.into does.
    """
    model, projector = found.layer("model"), found.layer("projector")
    if model is None or (PROJECTOR_LEFT_OUT in found.notes and not skip_projector):
        return None
    again = Registration(
        model=model.path(store.root),
        sha256=model.hex,
        projector=projector.path(store.root) if projector else None,
        projector_sha256=projector.hex if projector else "",
        template=template,
        skip_projector=skip_projector and (projector is not None or PROJECTOR_LEFT_OUT in found.notes),
        origin=found.notes.get(ORIGIN, ""),
        file=found.notes.get(FILE, ""),
    )
    return again.into(store, found.name)


def human_number(count: int) -> str:
    """Return a weight count as Ollama shows it: 134.52M, 8B, 7.6B."""
    for unit, size, digits in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 0)):
        if count >= size:
            return f"{count / size:.{0 if count % size == 0 else digits}f}{unit}"
    return str(count)


def _whole(path: Path) -> GgufFile:
    head = gguf_file.read(path)
    head.require_whole()
    if head.split_count > 1:
        raise gguf_file.GgufInvalid(f"{path.name} is one of {head.split_count} parts: give them all")
    return head


def _require_projector(path: Path) -> None:
    head = _whole(path)
    if not head.is_projector:
        what = f"its architecture is {head.architecture}, a projector's is clip"
        raise gguf_file.GgufInvalid(f"{path.name} is no projector: {what}; give the model's mmproj file")


def _adopted(store: Store, path: Path, sha256: str, media_type: str, metered: Callable[[int], Meter]) -> Layer:
    size_bytes = path.stat().st_size
    known = sha256 or known_digest.of(path, store.digests, metered(size_bytes).advance)
    return store.adopt(path, known, media_type=media_type, meter=metered(size_bytes))


def _config(head: GgufFile, layers: list[Layer], *, template: str) -> dict[str, object]:
    """Return what Ollama's config blob says of a model."""
    renderer, parser, _ = _DIALECTS.get(head.architecture, ("", "", {}))
    # A renderer would be used instead of the template that was asked for.
    dialect = {"renderer": "" if template else renderer, "parser": parser}
    return {
        "model_format": "gguf",
        "model_family": head.architecture,
        "model_families": [head.architecture],
        "model_type": human_number(head.parameter_count),
        "file_type": head.file_type,
        **{key: value for key, value in dialect.items() if value},
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
    }
