"""An S3 bucket as a source: the GGUF or folder that was asked for, or a mirror of repositories or of a store."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from worker import manifest, quantization
from worker.http_answer import Busy, NotThere, TransferFailed
from worker.http_range import Origin
from worker.manifest import Manifest
from worker.names import ModelName
from worker.references import Wanted
from worker.s3 import ENDPOINT_VARIABLES, Bucket, S3Object, taken_apart
from worker.selection import NoMatch, RepoFile, select
from worker.sources import download
from worker.sources.assembly import needed_files
from worker.sources.base import Delivery, Miss, Offer
from worker.transfer import USUAL, Terms

OBJECT_STORE_BYTES_PER_S = 1e9


@dataclass(frozen=True)
class ObjectStore:
    """Objects of one service.

    `account` has endpoint, region and keys; its bucket is the mirror's and "" without one. Below `prefix` a mirror has
    `org/repo/*.gguf`, or a copy of Ollama's store: `manifests/` and `blobs/`.
    """

    account: Bucket
    prefix: str = ""
    terms: Terms = USUAL
    name: str = "object_store"
    far: bool = True

    def offer(self, wanted: Wanted) -> Offer | Miss:
        """Return what the URL asked for leads to, else what the mirror has."""
        try:
            if wanted.place.startswith("s3://"):
                return self._at(wanted, *taken_apart(wanted.place))
            if wanted.place:
                return Miss(self.name, "a path was asked for", beside=True)
            if not self.account.name:
                return Miss(self.name, "no bucket is configured", beside=True)
            return self._mirrored(wanted)
        except (OSError, http.client.HTTPException) as exc:
            return Miss(self.name, self._unreachable(exc))
        except (TransferFailed, Busy, ValueError) as exc:
            return Miss(self.name, f"{exc}")

    def _unreachable(self, failure: OSError | http.client.HTTPException) -> str:
        """Return what it means that no answer came, and which variable says where it was looked for."""
        said = (failure.strerror if isinstance(failure, OSError) else "") or f"{failure}" or type(failure).__name__
        if endpoint := self.account.endpoint:
            return f"{endpoint} cannot be reached ({said}): {ENDPOINT_VARIABLES} must be the storage's address"
        return f"Amazon's S3 cannot be reached ({said}): for other storage set AWS_ENDPOINT_URL_S3"

    def _at(self, wanted: Wanted, bucket_name: str, key: str) -> Offer | Miss:
        bucket = self._bucket(bucket_name)
        if not key.lower().endswith(".gguf"):
            return self._selected(wanted, bucket, key.rstrip("/"), list(bucket.list(_folder(key))))
        # One object is taken as it is; only a part stands for its siblings, too.
        folder = str(PurePosixPath(key).parent).removeprefix(".")
        stem = quantization.stem(key)
        if quantization.part_of(key) is None:
            return self._selected(wanted, bucket, folder, [bucket.head(key)], key=key)
        listed = [found for found in bucket.list(f"{stem}-") if quantization.stem(found.key) == stem]
        return self._selected(wanted, bucket, folder, listed, key=key)

    def _mirrored(self, wanted: Wanted) -> Offer | Miss:
        bucket = self.account
        if wanted.repo:
            folder = _folder(self.prefix) + wanted.repo
            if objects := list(bucket.list(f"{folder}/")):
                return self._selected(wanted, bucket, folder, objects)
        found = self._manifest(wanted.name)
        if found is None:
            return Miss(
                self.name, f"s3://{bucket.name}/{_folder(self.prefix)} has neither {wanted.name.short} nor a repository"
            )

        def bring(delivery: Delivery) -> Manifest:
            return self._bring_store(delivery, found)

        return Offer(self.name, found.size_bytes, OBJECT_STORE_BYTES_PER_S, bring)

    def _selected(
        self, wanted: Wanted, bucket: Bucket, folder: str, objects: Sequence[S3Object], *, key: str = ""
    ) -> Offer | Miss:
        start = _folder(folder)
        by_path = {found.key.removeprefix(start): found for found in objects}
        files = [RepoFile(path, found.size_bytes, found.sha256) for path, found in by_path.items()]
        where = wanted.place or f"s3://{bucket.name}/{folder}"
        try:
            selection = select(
                where, files, quantization=wanted.quantization, file=key.removeprefix(start) or wanted.file
            )
        except NoMatch as exc:
            return Miss(self.name, str(exc))
        needed = needed_files(selection, skip_projector=wanted.skip_projector)

        def origin_of(file: RepoFile) -> Origin:
            found = by_path[file.path]
            return Origin(lambda: bucket.address(found.key), found.size_bytes, etag=found.etag)

        def bring(delivery: Delivery) -> Manifest:
            return download.bring(delivery, selection, origin_of, origin=where, terms=self.terms)

        return Offer(self.name, sum(file.size_bytes for file in needed), OBJECT_STORE_BYTES_PER_S, bring)

    def _manifest(self, name: ModelName) -> Manifest | None:
        try:
            data = self.account.read(f"{_folder(self.prefix)}manifests/{name.path.as_posix()}")
        except NotThere:
            return None
        return manifest.parse(name, data)

    def _bring_store(self, delivery: Delivery, found: Manifest) -> Manifest:
        for layer in found.layers:
            key = f"{_folder(self.prefix)}blobs/sha256-{layer.hex}"
            origin = Origin(lambda key=key: self.account.address(key), layer.size_bytes)  # type: ignore[misc]
            download.blob(delivery, origin, layer.hex, terms=self.terms)
        return delivery.store.publish(found)

    def _bucket(self, name: str) -> Bucket:
        a = self.account
        return Bucket(name, a.endpoint, a.region, a.access_key, a.secret_key, a.session_token)


def _folder(prefix: str) -> str:
    """Return a prefix as the start of keys in it."""
    return f"{prefix.strip('/')}/" if prefix.strip("/") else ""
