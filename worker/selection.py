"""Which files of a repository are the wanted model: its parts, its projector, what was decided for the user; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from worker.quantization import is_model, is_projector, label_of, matches, part_of, stem

DEFAULT_LABEL = "Q4_K_M"
# A projector is small beside its model: the precision its authors ship comes first.
_PROJECTOR_ORDER = ("F16", "BF16", "Q8_0", "F32")
_LISTED = 30


@dataclass(frozen=True)
class RepoFile:
    """One file of a repository: path inside it, size in bytes, sha256 in hex where it is known."""

    path: str
    size_bytes: int
    sha256: str = ""


@dataclass(frozen=True)
class Variant:
    """One model of a repository: a quantization label (or ""), and its file or the parts of it in order."""

    label: str
    parts: tuple[RepoFile, ...]

    @property
    def size_bytes(self) -> int:
        """All parts together."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def stem(self) -> str:
        """The path that its parts have in common."""
        return stem(self.parts[0].path)

    @property
    def complete(self) -> bool:
        """Whether every part is listed."""
        numbers = [part_of(part.path) for part in self.parts]
        return numbers == [None] or numbers == [(n, len(numbers)) for n in range(1, len(numbers) + 1)]

    def __str__(self) -> str:
        """Return label or file name, with the size."""
        return f"{self.label or PurePosixPath(self.stem).name} ({_size(self.size_bytes)})"


@dataclass(frozen=True)
class Selection:
    """The files to take, and one sentence for each thing the user did not decide."""

    model: Variant
    projector: RepoFile | None = None
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[RepoFile, ...]:
        """Every file to take."""
        return self.model.parts + ((self.projector,) if self.projector else ())

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files)


class NoMatch(ValueError):
    """The repository has nothing, or more than one thing, that fits; the message lists what it has."""


def variants(files: Iterable[RepoFile]) -> list[Variant]:
    """Return the models among `files`, smallest first; projectors and other companions are left out."""
    groups: dict[str, list[RepoFile]] = {}
    for file in files:
        if is_model(file.path):
            groups.setdefault(stem(file.path), []).append(file)
    found = [
        Variant(label_of(parts[0].path), tuple(sorted(parts, key=lambda part: part.path))) for parts in groups.values()
    ]
    return sorted(found, key=lambda variant: (variant.size_bytes, variant.stem))


def select(repo: str, files: Sequence[RepoFile], *, quantization: str = "", file: str = "") -> Selection:
    """Choose the model of `repo` by exact `file` name (any part of a split one), else by `quantization`, else Q4_K_M.

    Raises:
        NoMatch: none or several fit, or a part is missing.
    """
    found = variants(files)
    if not found:
        listed = ", ".join(sorted(f.path for f in files)[:_LISTED])
        raise NoMatch(f"{repo} has no GGUF {f'model; it has: {listed}' if listed else 'file'}")
    if file:
        chosen, notes = _by_file(repo, found, file)
    elif quantization:
        chosen, notes = _by_quantization(repo, found, quantization), ()
    else:
        chosen, notes = _by_default(repo, found)
    if not chosen.complete:
        listed = ", ".join(part.path for part in chosen.parts)
        raise NoMatch(f"{repo} lacks parts of {chosen.stem}; it has: {listed}")
    return Selection(chosen, _projector(files, chosen), notes)


def _by_file(repo: str, found: list[Variant], file: str) -> tuple[Variant, tuple[str, ...]]:
    wanted = file.removesuffix("?download=true")
    by_path = [(part.path, variant) for variant in found for part in variant.parts]
    for exactly in (True, False):
        text = wanted if exactly else wanted.lower()
        spelled = [(path if exactly else path.lower(), path, variant) for path, variant in by_path]
        for fitting in (
            [(path, variant) for spelling, path, variant in spelled if spelling == text],
            [(path, variant) for spelling, path, variant in spelled if PurePosixPath(spelling).name == text],
        ):
            if len({variant.stem for _, variant in fitting}) == 1:
                path, variant = fitting[0]
                return variant, () if exactly else (f"{wanted!r} is spelled {path!r} in {repo}",)
    listed = ", ".join(path for path, _ in by_path[:_LISTED])
    raise NoMatch(f"{repo} has no single file {wanted!r}; its GGUF files: {listed}")


def _by_quantization(repo: str, found: list[Variant], quantization: str) -> Variant:
    for quality in (3, 2, 1):
        fitting = [variant for variant in found if matches(variant.parts[0].path, quantization) == quality]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise NoMatch(_several(repo, quantization, fitting))
    raise NoMatch(f"{repo} has no {quantization}; it has: {_listing(found)}")


def _by_default(repo: str, found: list[Variant]) -> tuple[Variant, tuple[str, ...]]:
    usual = [variant for variant in found if variant.label == DEFAULT_LABEL]
    if len(usual) > 1:
        raise NoMatch(_several(repo, DEFAULT_LABEL, usual))
    chosen = usual[0] if usual else next((variant for variant in found if variant.complete), found[0])
    if len(found) == 1:
        return chosen, ()
    why = "no quantization was asked for" + ("" if usual else f" and there is no {DEFAULT_LABEL}: the smallest")
    return chosen, (f"{repo}: {why}; taking {chosen} of {_listing(found)}",)


def _projector(files: Sequence[RepoFile], model: Variant) -> RepoFile | None:
    """Return the projector to take: one beside the model before one elsewhere, then by precision, then by size."""
    folder = PurePosixPath(model.stem).parent

    def rank(file: RepoFile) -> tuple[bool, int, int, str]:
        label = label_of(file.path)
        order = _PROJECTOR_ORDER.index(label) if label in _PROJECTOR_ORDER else len(_PROJECTOR_ORDER)
        return PurePosixPath(file.path).parent != folder, order, file.size_bytes, file.path

    return min((file for file in files if is_projector(file.path) and file.path.lower().endswith(".gguf")),
               key=rank, default=None)  # fmt: skip


def _several(repo: str, wanted: str, fitting: list[Variant]) -> str:
    listed = ", ".join(variant.parts[0].path for variant in fitting)
    return f"{repo} has several files for {wanted}: {listed}; name one with HF_MODEL_FILE"


def _listing(found: list[Variant]) -> str:
    shown = ", ".join(str(variant) for variant in found[:_LISTED])
    return shown + (f" and {len(found) - _LISTED} more" if len(found) > _LISTED else "")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 10**8 else f"{size_bytes / 1e6:.1f} MB"
