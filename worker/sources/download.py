"""Files of a selection brought from HTTP origins into a store: whole and verified, and resumed when they were begun."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from worker import transfer
from worker.http_range import Origin
from worker.manifest import Manifest
from worker.registration import MODEL_TYPE
from worker.resumable import Resumable
from worker.selection import RepoFile, Selection
from worker.sources.assembly import assemble, needed_files
from worker.sources.base import Delivery
from worker.store import Store

OriginOf = Callable[[RepoFile], Origin]


def bring(
    delivery: Delivery, selection: Selection, origin_of: OriginOf, *, origin: str, terms: transfer.Terms
) -> Manifest:
    """Download what the store has not got of a selection and register it; raise as Offer.bring does."""
    store = delivery.store
    needed = needed_files(selection, skip_projector=delivery.wanted.skip_projector)
    missing = [file for file in needed if not (file.sha256 and store.has(file.sha256, file.size_bytes))]
    paths = {file: store.blob(file.sha256) for file in needed if file not in missing}
    split = len(selection.model.parts) > 1
    with _opened(store, missing, origin_of) as targets:
        # Parts are needed twice for a moment: by themselves and as one.
        merging_bytes = selection.model.size_bytes if split else 0
        there_bytes = sum(target.there_bytes for target in targets.values())
        meter = delivery.metered(sum(file.size_bytes for file in missing), there_bytes)
        store.require_room(merging_bytes)
        digests = {}
        for file, target in targets.items():
            digests[file] = transfer.fetch(origin_of(file), target, meter, sha256=file.sha256, terms=terms)
            paths[file] = target.path
        delivery.halt()
        if not split:
            for file, target in targets.items():
                store.install(target.finish(), digests[file], media_type=MODEL_TYPE)
                paths[file] = store.blob(digests[file])
        known = {file: replace(file, sha256=digests.get(file, file.sha256)) for file in needed}
        manifest = assemble(
            delivery,
            _with_digests(selection, known),
            {known[file]: path for file, path in paths.items()},
            origin=origin,
        )
        for target in targets.values():
            target.discard()
    return manifest


def blob(delivery: Delivery, origin: Origin, sha256: str, *, terms: transfer.Terms) -> Path:
    """Download one blob whose digest is known; return where it lies."""
    store = delivery.store
    if not store.has(sha256, origin.size_bytes):
        with Resumable(store.partials, sha256, origin.size_bytes) as target:
            meter = delivery.metered(origin.size_bytes, target.there_bytes)
            transfer.fetch(origin, target, meter, sha256=sha256, terms=terms)
            delivery.halt()
            store.install(target.finish(), sha256, media_type=MODEL_TYPE)
    return store.blob(sha256)


@contextmanager
def _opened(store: Store, files: Sequence[RepoFile], origin_of: OriginOf) -> Iterator[dict[RepoFile, Resumable]]:
    """Open what was begun; room for all of it is claimed before the first byte."""
    with contextlib.ExitStack() as stack:
        store.require_room(sum(file.size_bytes for file in files) - _begun_bytes(store, files, origin_of))
        yield {
            file: stack.enter_context(Resumable(store.partials, _key(file, origin_of(file)), file.size_bytes))
            for file in files
        }


def _begun_bytes(store: Store, files: Sequence[RepoFile], origin_of: OriginOf) -> int:
    """Return how much of the room that is needed is claimed already."""
    begun_bytes = 0
    for file in files:
        with contextlib.suppress(OSError):
            begun_bytes += (store.partials / f"{_key(file, origin_of(file))}.data").stat().st_blocks * 512
    return begun_bytes


def _key(file: RepoFile, origin: Origin) -> str:
    """Return what the content is: its digest, else where it comes from and which version of that it is."""
    if file.sha256:
        return file.sha256
    return hashlib.sha256(repr((file.path, file.size_bytes, origin.etag)).encode()).hexdigest()


def _with_digests(selection: Selection, known: dict[RepoFile, RepoFile]) -> Selection:
    projector = selection.projector
    return replace(
        selection,
        model=replace(selection.model, parts=tuple(known[part] for part in selection.model.parts)),
        projector=known.get(projector, projector) if projector else None,
    )
