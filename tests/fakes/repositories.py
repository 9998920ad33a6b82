"""Folders of small GGUF files as repositories have them, plain or as a Hugging Face cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.fakes import tiny_gguf
from worker.progress import Progress
from worker.sources.base import Delivery, Listener, Miss, Offer
from worker.store import Store


def content(path: str, scratch: Path) -> bytes:
    """Return a GGUF that differs from path to path; parts of a split model say so and fit together."""
    stem, mark, rest = path.rpartition("-of-")
    metadata: dict[str, Any] = {"general.architecture": "clip" if "mmproj" in path else "llama"}
    if mark:
        number, count = int(stem[-5:]), int(rest[:5])
        metadata |= {"split.no": number - 1, "split.count": count, "split.tensors.count": count}
    else:
        metadata["tokenizer.chat_template"] = f"{{# {path} #}}"
    seed = int.from_bytes(hashlib.sha256(path.encode()).digest()[:2], "big")
    file = scratch / f"{hashlib.sha256(path.encode()).hexdigest()}.gguf"
    tensor = ("v.patch.weight" if "mmproj" in path else f"blk.{stem[-5:] if mark else 0}.weight", (64, 64))
    tiny_gguf.write(file, metadata, [(*tensor, [float(seed + n) for n in range(64 * 64)])])
    try:
        return file.read_bytes()
    finally:
        file.unlink()


def folder(root: Path, *paths: str) -> Path:
    """Write a repository's files below `root`."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content(path, root) if path.endswith(".gguf") else path.encode())
    return root


def cache(root: Path, repo: str, *paths: str, revision: str = "main", links: bool = True) -> Path:
    """Write a repository into the Hugging Face cache at `root`; return its folder there."""
    place = root / f"models--{repo.replace('/', '--')}"
    commit = hashlib.sha1(f"{repo}{revision}".encode(), usedforsecurity=False).hexdigest()
    snapshot = place / "snapshots" / commit
    for path in paths:
        (place / "blobs").mkdir(parents=True, exist_ok=True)
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        data = content(path, place)
        if links:
            blob = place / "blobs" / hashlib.sha256(data).hexdigest()
            blob.write_bytes(data)
            (snapshot / path).symlink_to(blob)
        else:
            (snapshot / path).write_bytes(data)
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / revision).write_text(commit)
    return place


class Heard:
    """Remembers everything that was told to its `listener`."""

    def __init__(self) -> None:
        self.progress: list[tuple[str, Progress]] = []
        self.misses: list[Miss] = []
        self.notes: list[str] = []
        self.listener = Listener(
            lambda source, progress: self.progress.append((source, progress)), self.misses.append, self.notes.append
        )


def brought(source: Any, wanted: Any, store: Store, heard: Heard | None = None) -> Any:
    """Let a source offer and bring; return the manifest."""
    offer = source.offer(wanted)
    assert isinstance(offer, Offer), offer
    return offer.bring(Delivery(source.name, wanted, store, (heard or Heard()).listener, lambda: None))


def missed(source: Any, wanted: Any) -> str:
    """Return why a source has nothing to offer."""
    miss = source.offer(wanted)
    assert isinstance(miss, Miss), miss
    assert miss.source == source.name
    return miss.reason


def blobs(store: Store) -> set[str]:
    """Return the names of everything a store has under a digest."""
    return {path.name for path in store.root.glob("blobs/*")}


def left_over(*stores: Store) -> Iterable[Path]:
    """Return what should not have stayed."""
    return [path for store in stores for path in store.partials.glob("*")]
