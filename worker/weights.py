"""The resident model's weights made ready for the load: found or brought, landed when distant, shown to the server."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from worker import bounded, events
from worker.errors import WeightsUnavailable
from worker.location import Absent, Located, locate
from worker.outset import Outset
from worker.view import View

if TYPE_CHECKING:
    from worker.arrival import Arrival
    from worker.bringer import Bringer
    from worker.config import Config
    from worker.manifest import Layer
    from worker.progress import Progress

# Smaller files are read in less time than it takes to find out where they lie.
SMALL_BYTES = 16 << 20
# A store that says nothing for this long is passed over.
ANSWER_LIMIT_S = 30.0
ROOT = Path("/")
SHARED_MEMORY = Path("/dev/shm/worker-landed")  # noqa: S108 - nothing is written there unless memory has room


class Weights:
    """One model on its way to where the server reads it."""

    def __init__(self, start: Outset, view: View, writer: events.EventWriter) -> None:
        """Prepare; nothing is looked for yet."""
        self._start = start
        self._view = view
        self._events = writer
        self._silent = ""

    def find(self) -> Located | None:
        """Look on disk for the whole model, in some milliseconds: the server need not be up for that."""
        start = self._start
        self._events.write(events.WeightsRequested(model=start.wanted.text))
        for note in start.notes:
            self._note(note)
        found = self._search()
        if found is None:
            return None
        if found.models != start.stores[0] and not self._view.linked:
            self._note(f"{found.name} is in {found.models}, but the server can only be shown {start.stores[0]}")
            return None
        self._events.write(events.WeightsPlaced(model=found.name, source="local", store=str(found.models)))
        return found

    def near(self, found: Located) -> bool:
        """Return whether the server reads the model where it is, from the container's own disk."""
        return found.models == self._start.stores[0] and all(_own(layer.path(found.models)) for layer in _large(found))

    def make_ready(self, found: Located | None, config: Config, bringer: Callable[[], Bringer]) -> Located:
        """Bring the model into the store unless it was `found`, land it where that pays, and show it to the server.

        Raises:
            WeightsUnavailable: no source has it, a file of it is damaged, or the store does not answer.
            ServerExited: the server ended meanwhile.
        """
        store = self._start.stores[0]
        if found is None and self._silent:
            raise WeightsUnavailable(f"the store cannot be read: {self._silent}", "Look at the volume it is on")
        if found is None or (found.models != store and self._writes(config)):
            placed = bringer().bring(self._start.wanted)
            found = Located(placed.models, placed.manifest)
        self._show(found, self._landed(found, config))
        return found

    def loaded(self, config: Config) -> None:
        """Let the server write where it belongs, if it may write at all; what it has loaded stays loaded."""
        if self._writes(config):
            try:
                self._view.show(self._start.stores[0])
            except OSError as exc:
                self._note(f"the server does not see {self._start.stores[0]}: {exc.strerror or exc}")

    def _search(self) -> Located | None:
        """Return the model from the first store that has it whole; say what is wrong with the one that is filled."""
        told = ""
        for models in self._start.stores:
            look = functools.partial(locate, [models], self._start.wanted)
            try:
                found = bounded.call(look, ANSWER_LIMIT_S, str(models))
            except OSError as exc:
                found = Absent((str(exc),))
                self._silent = self._silent or (str(exc) if models == self._start.stores[0] else "")
            if isinstance(found, Located):
                return found
            told = told or found.reasons[0]
        self._events.write(events.SourcePassedOver(source="local", reason=told))
        return None

    def _show(self, found: Located, landed: dict[str, Path]) -> None:
        """Let the server see the model, in its landed files if there are any and that can be arranged."""
        try:
            if landed:
                bounded.call(lambda: self._view.show_landed(found.models, landed), ANSWER_LIMIT_S, str(found.models))
                return
        except OSError as exc:
            self._note(f"the landed files cannot be shown to the server: {exc.strerror or exc}")
        try:
            self._view.show(found.models)
        except OSError as exc:
            self._note(f"the server's store cannot be changed: {exc.strerror or exc}")

    def _writes(self, config: Config) -> bool:
        return config.pull_on_demand or config.allow_model_admin or bool(self._start.others)

    def _landed(self, found: Located, config: Config) -> dict[str, Path]:
        """Return where the large files are that were landed, by the name of their blob."""
        if not (config.landing and self._view.linked):
            return {}
        landed = {}
        folder = Path(config.landing_dir) if config.landing_dir else self._start.home / "landed"
        for place in (folder, SHARED_MEMORY):
            _clear(place, {layer.path(found.models).name for layer in _large(found)})
        for layer in _large(found):
            blob = layer.path(found.models)
            path = blob if _own(blob) else self._land(layer, found.models, folder)
            if path != blob:
                landed[blob.name] = path
        return landed

    def _land(self, layer: Layer, models: Path, folder: Path) -> Path:
        """Return where the server is to read a file; raise WeightsUnavailable when it is damaged."""
        from worker import arrival, known_digest  # noqa: PLC0415 - not needed for what lies on the container's disk
        from worker.landing import Terms  # noqa: PLC0415 - same
        from worker.progress import Meter  # noqa: PLC0415 - same

        source, digests = layer.path(models), models / "digests"
        self._events.write(events.LandingStarted(path=str(source)))
        try:
            known = bounded.call(lambda: known_digest.remembered(source, digests), ANSWER_LIMIT_S, str(source))
            verified = known == layer.hex
            terms = Terms(sha256=None if verified else layer.hex, stall_s=ANSWER_LIMIT_S)
            meter = Meter(layer.size_bytes, self._progressed)
            arrived = arrival.bring(source, [folder, SHARED_MEMORY], terms, meter=meter)
        except known_digest.Damaged as exc:
            hint = "Remove that file: the next start then brings it anew"
            raise WeightsUnavailable(f"a file of the model is damaged: {exc}", hint) from exc
        except OSError as exc:
            arrived = arrival.Arrival(source, f"it cannot be looked at: {exc.strerror or exc}")
        self._tell(arrived)
        if arrived.landed and not verified:
            with contextlib.suppress(OSError):
                bounded.call(lambda: known_digest.remember(source, digests, layer.hex), ANSWER_LIMIT_S, str(digests))
        return arrived.path

    def _tell(self, arrived: Arrival) -> None:
        method, size_bytes = (arrived.landed.method, arrived.landed.size_bytes) if arrived.landed else ("", 0)
        self._events.write(
            events.LandingFinished(path=str(arrived.path), method=method, size_bytes=size_bytes, reason=arrived.reason)
        )

    def _progressed(self, progress: Progress) -> None:
        self._events.write(events.WeightsProgressed(source="landing", **progress.fields()))

    def _note(self, text: str) -> None:
        self._events.write(events.WeightsNoted(text=text))


def _own(path: Path) -> bool:
    """Return whether a file is on the container's own disk: nothing is faster, and nothing is to be found out."""
    try:
        return path.stat().st_dev == ROOT.stat().st_dev
    except OSError:
        return False


def _large(found: Located) -> list[Layer]:
    return [layer for layer in found.manifest.layers if layer.size_bytes >= SMALL_BYTES]


def _clear(folder: Path, kept: set[str]) -> None:
    """Remove copies of other models' files: they were landed by a worker that served those."""
    for path in folder.glob("sha256-*"):
        if path.name not in kept:
            with contextlib.suppress(OSError):
                path.unlink()
