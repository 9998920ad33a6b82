"""The files of a selection, wherever they lie on disk, made one model of a store."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from worker import known_digest, shards
from worker.manifest import Manifest
from worker.registration import MODEL_TYPE, Registration
from worker.selection import RepoFile, Selection
from worker.sources.base import Delivery


def assemble(delivery: Delivery, selection: Selection, paths: Mapping[RepoFile, Path], *, origin: str) -> Manifest:
    """Register the files at `paths` under the name that is wanted; parts are merged first.

    Without a quantization asked for, the model is also registered as `latest`: that is where the next start looks.

    Raises:
        As Offer.bring does.
    """
    wanted, store = delivery.wanted, delivery.store
    model = selection.model.parts[0]
    path, sha256 = paths[model], model.sha256
    if len(selection.model.parts) > 1:
        path, sha256 = _merged(delivery, [paths[part] for part in selection.model.parts])
    projector = None if wanted.skip_projector else selection.projector
    registration = Registration(
        model=path,
        sha256=sha256,
        projector=paths[projector] if projector else None,
        projector_sha256=projector.sha256 if projector else "",
        template=wanted.template,
        skip_projector=wanted.skip_projector and selection.projector is not None,
        origin=origin,
        file=model.path,
    )
    name = wanted.named(selection.model.label, selection.model.stem)
    registered = registration.into(store, name, delivery.metered)
    for text in (*selection.notes, *registered.warnings):
        delivery.listener.noted(text)
    if name != wanted.name:
        store.publish(replace(registered.manifest, name=wanted.name))
    return registered.manifest


def needed_files(selection: Selection, *, skip_projector: bool) -> tuple[RepoFile, ...]:
    """Return the files that have to be there."""
    return selection.model.parts if skip_projector else selection.files


def _merged(delivery: Delivery, paths: list[Path]) -> tuple[Path, str]:
    """Return the blob and the digest of the parts as one file."""
    store = delivery.store
    parts = shards.order(paths)
    total_bytes = shards.merged_bytes(parts)
    store.require_room(total_bytes)
    store.partials.mkdir(parents=True, exist_ok=True)
    whole = store.partials / f"merged.{uuid.uuid4().hex}"
    try:
        shards.merge(parts, whole, delivery.metered(total_bytes).advance)
        sha256 = known_digest.computed(whole, delivery.metered(total_bytes).advance)
        store.install(whole, sha256, media_type=MODEL_TYPE)
    finally:
        whole.unlink(missing_ok=True)
    return store.blob(sha256), sha256
