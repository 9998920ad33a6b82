"""Does the queue fit upstream's releases, and where did an anchor go when it does not."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from worker.patches.queue import Problem
from worker.patches.source import Release, Source, release_order
from worker.patches.trial import Misfit, try_series

if TYPE_CHECKING:
    from pathlib import Path

    from worker.patches.queue import Hunk, Queue

_SHOWN_PLACES = 3
_SIMILAR = 0.6
_TELLING_LENGTH = 12  # characters


def check_source(queue: Queue, src: Path) -> list[Problem]:
    """Return every way in which the queue does not fit the releases in `src`, a checkout or a bare repository.

    Needs a queue without static problems. Raises SourceUnreadable when `src` is no repository of upstream.
    """
    source = Source(src)
    failing: dict[Misfit, list[Release]] = {}
    for releases in same_sources(queue, source):
        for misfit in _misfits(queue, source, releases[0].commit):
            failing.setdefault(misfit, []).extend(releases)
    return _pin_problems(queue, source) + [_explain(misfit, source, where) for misfit, where in failing.items()]


def same_sources(queue: Queue, source: Source) -> list[list[Release]]:
    """Group the releases, and the pinned commit if it is none, by what the queue touches: one trial a group."""
    releases = source.releases(queue.upstream["OLLAMA_OLDEST"])
    pin = queue.upstream["OLLAMA_COMMIT"]
    if pin not in [release.commit for release in releases] and source.has(pin):
        releases.append(Release(pin[:12], pin))
    groups: dict[tuple[tuple[str, str], ...], list[Release]] = {}
    for release in releases:
        key = tuple(sorted(source.objects(release.commit, _paths(queue)).items()))
        groups.setdefault(key, []).append(release)
    return list(groups.values())


def _paths(queue: Queue) -> list[str]:
    touched = {path for patch in queue.patches.values() for path in patch.paths}
    return sorted(touched | set(queue.shipped))


def _pin_problems(queue: Queue, source: Source) -> list[Problem]:
    tag, commit = queue.upstream["OLLAMA_TAG"], queue.upstream["OLLAMA_COMMIT"]
    commits = {release.tag: release.commit for release in source.releases(tag)}
    if tag in commits and commits[tag] != commit:
        what = f"{tag} is {commits[tag]}, not {commit}"
        return [Problem("pin", "UPSTREAM", what, f"OLLAMA_COMMIT={commits[tag]}")]
    if tag not in commits and not source.has(commit):
        what = f"{source.path} has neither {tag} nor its commit"
        return [Problem("pin", "UPSTREAM", what, f"git -C {source.path} fetch origin tag {tag}")]
    return []


def _misfits(queue: Queue, source: Source, commit: str) -> list[Misfit]:
    objects = source.objects(commit, _paths(queue))
    taken = [Misfit(path, "upstream has a file of this name") for path in queue.shipped if path in objects]
    files = {path: source.text(blob) for path, blob in objects.items() if path not in queue.shipped}
    return taken + try_series(queue.in_order, queue.directory, files)


def _explain(misfit: Misfit, source: Source, releases: list[Release]) -> Problem:
    releases = sorted(releases, key=lambda release: release_order(release.tag) or ())
    newest = releases[-1]
    where = newest.tag + (f" and {len(releases) - 1} more, from {releases[0].tag}" if releases[1:] else "")
    if not misfit.patch.endswith(".patch"):
        return Problem("overlay", misfit.patch, f"{where}: {misfit.said}", "rename ours")
    tree = f"/tmp/ollama-{newest.tag}"  # noqa: S108 (a suggestion in a message, nothing is written there)
    refresh = (
        f"git -C {source.path} worktree add --detach {tree} {newest.tag}, edit {tree}, "
        f"then python -m worker patches refresh {misfit.patch} {tree}"
    )
    if misfit.hunk is None:
        return Problem("fit", misfit.patch, f"{where}: {misfit.said}", refresh)
    hunk = misfit.hunk
    blobs = source.objects(newest.commit, [hunk.path])
    what = f"{where}: hunk {hunk.number} of {hunk.path} does not fit: {misfit.said}. "
    what += _whereabouts(hunk, source, newest, "".join(map(source.text, blobs.values())))
    return Problem("fit", misfit.patch, what, refresh)


def _whereabouts(hunk: Hunk, source: Source, release: Release, text: str) -> str:
    # A brace or a `continue` stands everywhere and says nothing.
    telling = [line for line in dict.fromkeys(map(str.strip, hunk.before)) if len(line) >= _TELLING_LENGTH]
    return "; ".join(
        f"'{line}' {_whereabouts_of_line(line, hunk.path, source.places(release.commit, line), text)}"
        for line in telling
    )


def _whereabouts_of_line(line: str, path: str, hits: list[tuple[str, int]], text: str) -> str:
    if hits:
        hits = sorted(hits, key=lambda hit: hit[0] != path)
        more = f" and {len(hits) - _SHOWN_PLACES} more" if len(hits) > _SHOWN_PLACES else ""
        return "stands at " + ", ".join(f"{name}:{number}" for name, number in hits[:_SHOWN_PLACES]) + more
    lines = [line.strip() for line in text.splitlines()]
    if close := difflib.get_close_matches(line, lines, n=1, cutoff=_SIMILAR):
        return f"is gone, closest is {path}:{lines.index(close[0]) + 1}: '{close[0]}'"
    return f"is gone and nothing like it is left in {path}"
