"""The Hugging Face Hub as a source: its own library lists and, if need be, downloads; ranges bring the rest."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from worker import bounded, known_digest
from worker.http_range import Origin
from worker.manifest import Manifest
from worker.progress import Meter
from worker.references import Wanted
from worker.selection import NoMatch, RepoFile, Selection, select
from worker.sources import download
from worker.sources.assembly import assemble, needed_files
from worker.sources.base import Delivery, Miss, Offer, SourceFailed
from worker.transfer import USUAL, Terms

HUB = "https://huggingface.co"
HUB_BYTES_PER_S = 300e6
LISTING_LIMIT_S = 60.0
# The Hub gives larger files through its own protocol only.
LARGEST_BY_HTTP_BYTES = 50 * 10**9


@dataclass(frozen=True)
class Hub:
    """The Hub at `endpoint`, asked as whoever `token` says.

    `own_transfer` leaves every download to the Hub's library, which takes its accelerated protocol where the file is
    stored so; that cannot go on where another worker was killed.
    """

    token: str = field(default="", repr=False)
    endpoint: str = HUB
    own_transfer: bool = False
    terms: Terms = USUAL
    name: str = "hub"
    far: bool = True

    def offer(self, wanted: Wanted) -> Offer | Miss:
        """Ask the Hub for the repository's files and return the offer of the wanted one."""
        if not wanted.repo:
            return Miss(self.name, "it has Hugging Face repositories only", beside=True)
        try:
            files = bounded.call(lambda: self._listed(wanted), LISTING_LIMIT_S, self._place)
            selection = select(wanted.repo, files, quantization=wanted.quantization, file=wanted.file)
        except (OSError, NoMatch) as exc:
            return Miss(self.name, str(exc))
        needed = needed_files(selection, skip_projector=wanted.skip_projector)

        def bring(delivery: Delivery) -> Manifest:
            return self._bring(delivery, selection)

        return Offer(self.name, sum(file.size_bytes for file in needed), HUB_BYTES_PER_S, bring)

    @property
    def _place(self) -> str:
        """What is asked, and where that is set unless it is the usual one."""
        return "the Hub" if self.endpoint == HUB else f"HF_ENDPOINT={self.endpoint}"

    def _listed(self, wanted: Wanted) -> list[RepoFile]:
        """Return the repository's files; raise OSError with a sentence."""
        api, errors = self._api()
        try:
            found = list(api.list_repo_tree(wanted.repo, recursive=True, revision=wanted.revision))
        except (errors.HTTPError, OSError, ValueError) as exc:
            raise OSError(self._sentence(errors, exc, wanted)) from exc
        return [
            RepoFile(file.path, file.lfs.size if file.lfs else file.size, file.lfs.sha256 if file.lfs else "")
            for file in found
            if hasattr(file, "size")
        ]

    def _bring(self, delivery: Delivery, selection: Selection) -> Manifest:
        wanted = delivery.wanted
        origin = f"{self.endpoint}/{wanted.repo}@{wanted.revision}"
        if self.own_transfer or any(file.size_bytes > LARGEST_BY_HTTP_BYTES for file in selection.files):
            return self._bring_by_library(delivery, selection, origin)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}

        def origin_of(file: RepoFile) -> Origin:
            path = f"{wanted.repo}/resolve/{quote(wanted.revision, safe='')}/{quote(file.path)}"
            return Origin(lambda: f"{self.endpoint}/{path}", file.size_bytes, headers)

        return download.bring(delivery, selection, origin_of, origin=origin, terms=self.terms)

    def _bring_by_library(self, delivery: Delivery, selection: Selection, origin: str) -> Manifest:
        store = delivery.store
        needed = needed_files(selection, skip_projector=delivery.wanted.skip_projector)
        store.require_room(sum(file.size_bytes for file in needed))
        store.partials.mkdir(parents=True, exist_ok=True)
        meter = delivery.metered(sum(file.size_bytes for file in needed))
        with tempfile.TemporaryDirectory(prefix="hub.", dir=store.partials) as folder:
            paths = {file: self._downloaded(delivery, file, Path(folder), meter) for file in needed}
            return assemble(delivery, selection, paths, origin=origin)

    def _downloaded(self, delivery: Delivery, file: RepoFile, folder: Path, meter: Meter) -> Path:
        """Let the library download one file; raise SourceFailed or Damaged."""
        api, errors = self._api()
        wanted = delivery.wanted
        try:
            path = Path(
                api.hf_hub_download(
                    wanted.repo,
                    file.path,
                    revision=wanted.revision,
                    local_dir=folder,
                    tqdm_class=_bar(meter.advance),
                )
            )
        except (errors.HTTPError, OSError, ValueError, RuntimeError) as exc:
            raise SourceFailed(self._sentence(errors, exc, wanted)) from exc
        # The library compares sizes only.
        checked = delivery.metered(file.size_bytes)
        if file.sha256 and (found := known_digest.computed(path, checked.advance)) != file.sha256:
            raise known_digest.Damaged(file.path, found, file.sha256)
        return path

    def _api(self) -> tuple[Any, Any]:
        try:
            library: Any = importlib.import_module("huggingface_hub")
            errors: Any = importlib.import_module("huggingface_hub.errors")
        except ImportError as exc:
            raise OSError("the package huggingface_hub is not installed") from exc
        return library.HfApi(endpoint=self.endpoint, token=self.token or False), errors

    def _sentence(self, errors: Any, failure: Exception, wanted: Wanted) -> str:
        """Return what a failure of the library means and what to do about it."""
        if isinstance(failure, errors.GatedRepoError):
            return f"{wanted.repo} is gated: accept its terms on its page and set HF_TOKEN"
        if isinstance(failure, errors.RepositoryNotFoundError):
            return f"there is no repository {wanted.repo}, or it is private and HF_TOKEN may not read it"
        if isinstance(failure, errors.RevisionNotFoundError):
            return f"{wanted.repo} has no revision {wanted.revision}"
        if isinstance(failure, errors.OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set: unset it"
        status = getattr(getattr(failure, "response", None), "status_code", None)
        if status is not None:
            return f"{self._place} answers HTTP {status}"
        advice = "" if self.endpoint == HUB else f": set it to a hub's address, as {HUB}"
        return f"{self._place} cannot be reached ({type(failure).__name__}: {failure}){advice}"


def _bar(advance: Callable[[int], None]) -> type[Any]:
    tqdm: Any = importlib.import_module("tqdm").tqdm

    class Bar(tqdm):  # type: ignore[misc] # the library takes a class to make progress bars of
        """Counts for us and draws nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            advance(int(n or 0))

        def update_transfer(self, _: float | None = 1) -> None:
            """Count what is written only, not what is received as well."""

    return Bar
