"""A Hugging Face cache on disk as a source: Runpod fills one before a worker starts."""

from __future__ import annotations

from pathlib import Path

from worker.references import Wanted
from worker.sources import folder
from worker.sources.base import Miss, Offer


class ModelStore:
    """The cache at a folder that holds `models--org--repo` folders; it is only read."""

    name = "model_store"
    far = False

    def __init__(self, cache: Path) -> None:
        """Read the cache at `cache`, which need not exist."""
        self._cache = cache

    def offer(self, wanted: Wanted) -> Offer | Miss:
        """Return the wanted repository's files, found by exact name, in lower case, or without regard to case."""
        if not wanted.repo:
            return Miss(self.name, "it has Hugging Face repositories only", beside=True)
        try:
            repository = _repository(self._cache, wanted.repo)
            if repository is None:
                return Miss(self.name, f"{wanted.repo} is not in {self._cache}")
            place = snapshot(repository, wanted.revision)
            if place is None:
                return Miss(self.name, f"{repository.name} has no snapshot of {wanted.revision}")
            return folder.offer(self.name, wanted, place, folder.files(place))
        except OSError as exc:
            return Miss(self.name, f"{self._cache} cannot be read: {exc.strerror or exc}")


def snapshot(repository: Path, revision: str) -> Path | None:
    """Return the folder with a revision's files in a cache's folder of one repository.

    What refs/`revision` names, else a snapshot called so, else the only or the newest one; None when there is none.
    """
    snapshots = repository / "snapshots"
    try:
        named = (repository / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        named = revision
    if named and (snapshots / named).is_dir():
        return snapshots / named
    found = [entry for entry in snapshots.iterdir() if entry.is_dir()] if snapshots.is_dir() else []
    return max(found, key=lambda entry: entry.stat().st_mtime_ns, default=None)


def _repository(cache: Path, repo: str) -> Path | None:
    folder_name = f"models--{repo.replace('/', '--')}"
    for spelling in (folder_name, folder_name.lower()):
        if (cache / spelling).is_dir():
            return cache / spelling
    if not cache.is_dir():
        return None
    return next((entry for entry in sorted(cache.iterdir()) if entry.name.lower() == folder_name.lower()), None)
