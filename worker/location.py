"""Where a model lies already, judged from disk in a few milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker import manifest
from worker.manifest import FILE, ORIGIN, PROJECTOR_LEFT_OUT, Manifest
from worker.references import Wanted


@dataclass(frozen=True)
class Located:
    """A whole model: the store that has it, and its manifest there."""

    models: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """What the server calls it."""
        return self.manifest.name.short


@dataclass(frozen=True)
class Absent:
    """No store has the model whole; one reason for each store, and the best that was found."""

    reasons: tuple[str, ...]
    unfit: Located | None = None


def locate(stores: Sequence[Path], wanted: Wanted) -> Located | Absent:
    """Search `stores` in order for the whole model; nothing is opened but manifests, nothing is asked over a network.

    `unfit` of the answer is a whole model that was registered from the same file with another template or projector.
    """
    reasons = []
    unfit = None
    for models in stores:
        try:
            found = _manifest(models, wanted)
            reason = "the model is not in the store" if found is None else _problem(models, found, wanted)
        except ValueError as exc:
            found, reason = None, str(exc)
        if found is not None and not reason:
            if dressed_as(found, wanted):
                return Located(models, found)
            unfit = unfit or Located(models, found)
            reason = "the model was registered with another template or projector"
        reasons.append(f"{models}: {reason}")
    return Absent(tuple(reasons) or ("there is no store",), unfit)


def dressed_as(found: Manifest, wanted: Wanted) -> bool:
    """Return whether a model has the template and the projector that are wanted.

    Only what the worker registered itself, from a repository or a place, is dressed by the worker's settings; another
    model is as its publisher made it.
    """
    if ORIGIN not in found.notes or not (wanted.repo or wanted.place):
        return True
    template = found.layer("template")
    if (template.digest if template else "") != _digest(wanted.template):
        return False
    if wanted.skip_projector:
        return found.layer("projector") is None
    return PROJECTOR_LEFT_OUT not in found.notes


def stamp(path: Path) -> str:
    """Return what tells one state of a local file from another."""
    stat = path.stat()
    return f"{path} {stat.st_size} {stat.st_mtime_ns}"


def _manifest(models: Path, wanted: Wanted) -> Manifest | None:
    name = manifest.spelled(models, wanted.name)
    if name is None:
        return None
    found = manifest.read(models, name)
    if found is None or wanted.settled:
        return found
    # What is registered as `latest` has its quantization's name beside it.
    for other in sorted(manifest.path_of(models, name).parent.iterdir()):
        twin = manifest.read(models, type(name)(name.host, name.namespace, name.model, other.name))
        if twin is not None and other.name != name.tag and twin.layers == found.layers:
            return twin
    return found


def _problem(models: Path, found: Manifest, wanted: Wanted) -> str:
    if lacking := found.lacks(models):
        return "; ".join(lacking)
    if wanted.file and found.notes.get(FILE, wanted.file).lower() != wanted.file.lower():
        return f"{found.name.short} was registered from {found.notes[FILE]}"
    if wanted.place and "://" not in wanted.place and _changed(wanted.place, found.notes.get(ORIGIN, "")):
        return f"{wanted.place} has changed since it was registered"
    return ""


def _changed(place: str, origin: str) -> bool:
    """Return whether a local file is another one than the registered one; one that is gone has not changed."""
    path, _, _ = origin.rpartition(" ")[0].rpartition(" ")
    try:
        return stamp(Path(path)) != origin
    except OSError:
        return Path(place).expanduser().exists()


def _digest(template: str) -> str:
    if not template:
        return ""
    import hashlib  # noqa: PLC0415 - it takes as long to import as most of a search

    return f"sha256:{hashlib.sha256(template.encode()).hexdigest()}"
