"""A model as requests see it: its file, what it can do, and what its layers add to every request."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.local.engine import gguf
from worker.local.engine.gguf import Gguf, GgufInvalid
from worker.local.engine.store import Manifest, Store
from worker.names import ModelName

# Families whose state cannot be shared between slots: Ollama gives them one slot whatever is configured.
ONE_SLOT_FAMILIES = frozenset(
    {"qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "nemotron_h"}
)


@dataclass(frozen=True)
class Model:
    """One model of the store. Without a readable file it has no `head` and can do nothing; `fault` says why."""

    manifest: Manifest
    path: Path
    head: Gguf | None
    config: dict[str, Any]
    system: str = ""
    template: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    licences: tuple[str, ...] = ()
    fault: str = ""

    @classmethod
    def load(cls, store: Store, name: ModelName) -> Model:
        """Read manifest, config and layers of `name`; raise ModelMissing when there is no such model."""
        manifest = store.manifest(name)
        layers = dict(manifest.layers)

        def text(kind: str) -> str:
            return store.blob(layers[kind]).read_text("utf-8") if kind in layers else ""

        path = store.blob(layers.get("model", ""))
        head, fault = _head(path)
        return cls(
            manifest=manifest,
            path=path,
            head=head,
            fault=fault,
            config=json.loads(store.blob(manifest.config_digest).read_text("utf-8")) if manifest.config_digest else {},
            system=text("system"),
            template=text("template"),
            options=json.loads(text("params") or "{}"),
            messages=json.loads(text("messages") or "[]"),
            licences=tuple(store.blob(d).read_text("utf-8") for kind, d in manifest.layers if kind == "license"),
        )

    @property
    def name(self) -> ModelName:
        """Return the full name."""
        return self.manifest.name

    @property
    def capabilities(self) -> list[str]:
        """Return what the model can do, in Ollama's words and by its rules: the GGUF and its chat template decide."""
        template = self.head.chat_template if self.head is not None else ""
        found = ["tools"] if "tools" in template or "tool_call" in template else []
        found += ["thinking"] if "<think>" in template and "</think>" in template else []
        return list(dict.fromkeys([*found, *self.listed_capabilities]))

    @property
    def listed_capabilities(self) -> list[str]:
        """Return what /api/tags says the model can do: less, for the list does not look at chat templates."""
        found = list(self.config.get("capabilities") or [])
        if self.head is not None:
            found.append("completion" if self.head.of_model("pooling_type") is None else "embedding")
        return found

    @property
    def details(self) -> dict[str, Any]:
        """Return the `details` object of /api/tags, /api/show and /api/ps."""
        return {
            "parent_model": "",
            "format": self.config.get("model_format", ""),
            "family": self.config.get("model_family", ""),
            "families": self.config.get("model_families"),
            "parameter_size": self.config.get("model_type", ""),
            "quantization_level": self.config.get("file_type", ""),
        }

    @property
    def train_context(self) -> int:
        """Return the context length the model was trained with, 0 when unknown."""
        return int((self.head.of_model("context_length") if self.head is not None else None) or 0)

    @property
    def embedding_length(self) -> int:
        """Return the width of the model's embeddings, 0 when unknown."""
        return int((self.head.of_model("embedding_length") if self.head is not None else None) or 0)

    @property
    def is_embedding(self) -> bool:
        """Say whether the model only makes embeddings."""
        return "completion" not in self.capabilities

    def slots(self, configured: int) -> int:
        """Return how many requests the model serves at once when `configured` are allowed."""
        family = self.config.get("model_family", "")
        return 1 if self.is_embedding or family in ONE_SLOT_FAMILIES else configured


def _head(path: Path) -> tuple[Gguf | None, str]:
    # A missing file is a model that can do nothing, a wrong one is a fault: Ollama answers them differently.
    try:
        return gguf.read(path), ""
    except OSError:
        return None, ""
    except GgufInvalid as error:
        return None, str(error)
