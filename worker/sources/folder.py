"""GGUF files in a folder on disk: which there are, and one of them as an offer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worker import known_digest
from worker.location import stamp
from worker.manifest import Manifest
from worker.references import Wanted
from worker.selection import NoMatch, RepoFile, select
from worker.sources.assembly import assemble, needed_files
from worker.sources.base import Delivery, Miss, Offer

# What hashing a file takes where nobody knows its digest; linking takes no time.
HASH_BYTES_PER_S = 1.5e9
_DEEPEST = 4


def files(folder: Path) -> list[RepoFile]:
    """Return the GGUF files of a folder and of up to three folders below; hidden ones and dead links are left out."""
    found = []
    for depth in range(_DEEPEST):
        for path in folder.glob("/".join(["*"] * depth + ["*.[gG][gG][uU][fF]"])):
            relative = path.relative_to(folder)
            if path.is_file() and not any(part.startswith(".") for part in relative.parts):
                found.append(RepoFile(str(relative), path.stat().st_size, known_digest.named(path)))
    return sorted(found, key=lambda file: file.path)


def offer(source: str, wanted: Wanted, folder: Path, listed: Sequence[RepoFile], *, file: str = "") -> Offer | Miss:
    """Return the offer of the wanted model among `listed` files of `folder`; nothing of it needs a network."""
    try:
        selection = select(
            wanted.repo or str(folder), listed, quantization=wanted.quantization, file=file or wanted.file
        )
    except NoMatch as exc:
        return Miss(source, str(exc))
    needed = needed_files(selection, skip_projector=wanted.skip_projector)
    unknown_bytes = sum(needed_file.size_bytes for needed_file in needed if not needed_file.sha256)

    def bring(delivery: Delivery) -> Manifest:
        paths = {needed_file: folder / needed_file.path for needed_file in needed}
        return assemble(delivery, selection, paths, origin=stamp(paths[selection.model.parts[0]]))

    return Offer(source, unknown_bytes, HASH_BYTES_PER_S, bring)
