"""A store for Ollama with models of a few hundred bytes: metadata that describes weights, and zeros."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path


def register(models: Path, name: str, *, inline: bool) -> None:
    """Put a model with a prediction head and a projector, in its own file or in a separate one, into the store."""
    numbers = {"block_count": 2, "context_length": 4096, "embedding_length": 64, "nextn_predict_layers": 1}
    tensors = ["token_embd.weight", "blk.0.ffn_up.weight", *(["v.patch_embd.weight"] if inline else [])]
    model = _gguf("qwen35", {f"qwen35.{key}": value for key, value in numbers.items()}, tensors)
    layers = {"model": model, "params": json.dumps({"draft_num_predict": 2}).encode()}
    if not inline:
        layers["projector"] = _gguf("clip", {"clip.vision.block_count": 1}, ["v.patch_embd.weight"])
    config = {"model_format": "gguf", "model_family": "qwen35"}
    manifest = {
        "schemaVersion": 2,
        "config": _blob(models, "application/vnd.docker.container.image.v1+json", json.dumps(config).encode()),
        "layers": [_blob(models, f"application/vnd.ollama.image.{kind}", content) for kind, content in layers.items()],
    }
    path = models / "manifests" / "registry.ollama.ai" / "library" / name / "latest"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(manifest))


def _gguf(architecture: str, numbers: dict[str, int], tensors: list[str]) -> bytes:
    """A model file with metadata and zeros: enough for Ollama, which only reads what describes the weights."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    strings = {"general.architecture": architecture, "tokenizer.ggml.model": "gpt2"}
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(numbers) + len(strings))
    head += b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in strings.items())
    head += b"".join(text(key) + struct.pack("<II", 4, value) for key, value in numbers.items())
    for place, name in enumerate(tensors):
        head += text(name) + struct.pack("<IQIQ", 1, 8, 0, 32 * place)  # one dimension of 8 float32
    return head + bytes(-len(head) % 32) + bytes(32 * len(tensors))


def _blob(models: Path, media_type: str, content: bytes) -> dict:
    digest = hashlib.sha256(content).hexdigest()
    path = models / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}
