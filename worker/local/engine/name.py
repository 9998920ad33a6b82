"""A model's full name in Ollama's store: host, namespace, model and tag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
INVALID_NAME = "invalid model name"
_PARTS = {
    "host": re.compile(r"\w[\w.:-]{0,349}", re.ASCII),
    "namespace": re.compile(r"\w[\w-]{0,79}", re.ASCII),
    "model": re.compile(r"\w[\w.-]{0,79}", re.ASCII),
    "tag": re.compile(r"\w[\w.-]{0,79}", re.ASCII),
}


class NameMissing(ValueError):
    """No name was given."""


class NameInvalid(ValueError):
    """The name cannot name a model."""


@dataclass(frozen=True)
class ModelName:
    """Four parts, all present and valid."""

    host: str
    namespace: str
    model: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Read `[host/][namespace/]model[:tag]`; raise NameMissing for nothing, NameInvalid for nonsense."""
        rest = text.strip()
        if not rest:
            raise NameMissing("model is required")
        tag = DEFAULT_TAG
        if rest.rfind(":") > rest.rfind("/"):
            rest, _, tag = rest.rpartition(":")
            if tag == "local":
                # `:local` says where to look, not which tag; a tag may stand before it.
                return cls.parse(rest)
        *places, model = rest.rsplit("/", 2)
        namespace = places[-1] if places else DEFAULT_NAMESPACE
        host = places[0].partition("://")[2] or places[0] if len(places) > 1 else DEFAULT_HOST
        return cls(host, namespace, model, tag).checked()

    def checked(self) -> ModelName:
        """Return itself, or raise NameInvalid when a part is malformed."""
        if all(pattern.fullmatch(getattr(self, part)) for part, pattern in _PARTS.items()):
            return self
        raise NameInvalid(INVALID_NAME)

    @property
    def full(self) -> str:
        """All four parts."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def short(self) -> str:
        """The shortest text that parses back to this name, tag included."""
        if self.host.lower() != DEFAULT_HOST:
            return self.full
        prefix = "" if self.namespace.lower() == DEFAULT_NAMESPACE else f"{self.namespace}/"
        return f"{prefix}{self.model}:{self.tag}"

    @property
    def path(self) -> Path:
        """Where its manifest lies below `manifests/`."""
        return Path(self.host, self.namespace, self.model, self.tag)
