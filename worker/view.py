"""The folder the server takes for its store: a link, so that what it shows can change while the server runs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "OLLAMA_MODELS"


class View:
    """One store of several, or one of them with a few blobs replaced by copies on local disk.

    The server is started before anybody knows which store has the model, and reads a store's files by name at each
    request. Where no link can be made the server gets `store` itself, and only that can be shown.
    """

    def __init__(self, link: Path, store: Path) -> None:
        """Prepare to show `store` at `link`, whose parent belongs to this worker alone."""
        self._link = link
        self._store = store
        self._dressed = link.with_name(f"{link.name}.landed")
        self._linked = False

    def open(self) -> dict[str, str]:
        """Begin to show the store; return the server's variable for it."""
        with contextlib.suppress(OSError):
            # The server would not make a folder that a link leads to.
            self._store.mkdir(parents=True, exist_ok=True)
            self._link.parent.mkdir(parents=True, exist_ok=True)
            self._sweep()
            self._point(self._store)
            self._linked = True
        return {VARIABLE: str(self._link if self._linked else self._store)}

    @property
    def linked(self) -> bool:
        """Whether the server can be shown anything but the store it was started with."""
        return self._linked

    def show(self, models: Path) -> None:
        """Let the server see the store at `models` from now on. What it has loaded stays loaded.

        Raises:
            OSError: the link cannot be changed.
        """
        if self._linked:
            self._point(models)

    def show_landed(self, models: Path, landed: Mapping[str, Path]) -> None:
        """Let the server see the store at `models`, with the files of `landed` (blob name to path) for its blobs.

        Raises:
            OSError: the folder for that cannot be made.
        """
        # A link to a relative path would lead on from the folder it lies in.
        models = models.absolute()
        shutil.rmtree(self._dressed, ignore_errors=True)
        blobs = self._dressed / "blobs"
        blobs.mkdir(parents=True)
        (self._dressed / "manifests").symlink_to(models / "manifests")
        for blob in (models / "blobs").iterdir():
            (blobs / blob.name).symlink_to(landed.get(blob.name, blob).absolute())
        self._point(self._dressed)

    def close(self) -> None:
        """Take the link away; the stores stay as they are."""
        if self._linked:
            self._link.unlink(missing_ok=True)
        shutil.rmtree(self._dressed, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what workers left that were killed; views are called after their worker's process."""
        for left in self._link.parent.iterdir():
            pid = left.name.partition(".")[0]
            if pid.isdecimal() and not Path("/proc", pid).exists():
                if left.is_symlink():
                    left.unlink(missing_ok=True)
                else:
                    shutil.rmtree(left, ignore_errors=True)

    def _point(self, models: Path) -> None:
        fresh = self._link.with_name(f"{self._link.name}.new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(models.absolute())
        try:
            fresh.replace(self._link)
        finally:
            fresh.unlink(missing_ok=True)
