"""A trial of the series on one revision's files: do both tools apply every hunk exactly, alone and in order."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worker.patches.source import clean_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.patches.queue import Hunk, Patch

_TOOL_LIMIT_S = 60
_TOOLS = {
    "patch -F0": ["patch", "--strip=1", "--fuzz=0", "--forward", "--no-backup-if-mismatch", "--reject-file=-"],
    "git apply": ["git", "apply", "-"],  # git never fuzzes
}


@dataclass(frozen=True)
class Misfit:
    """A patch that does not apply. `hunk` is the first that does not fit; None when only a tool objects."""

    patch: str
    said: str
    hunk: Hunk | None = None


def try_series(patches: Sequence[Patch], directory: Path, files: dict[str, str]) -> list[Misfit]:
    """Try `patches` of queue `directory` on `files` (path → text), in order and each alone; return what fails.

    A patch that needs an earlier one would make that one impossible to drop, so it counts as failing.
    """
    found = []
    for patch in patches:
        if misfit := _place(patch, files):
            found.append(misfit)
        else:
            found += _run([patch], directory, files)
    return found or _run(patches, directory, files)


def places_of(hunk: Hunk, text: str) -> list[int]:
    """Return the line numbers, from 1, at which the hunk's old lines stand in `text`."""
    lines, wanted = text.splitlines(), list(hunk.before)
    last = len(lines) - len(wanted)
    return [at + 1 for at in range(last + 1) if lines[at : at + len(wanted)] == wanted]


def _place(patch: Patch, files: dict[str, str]) -> Misfit | None:
    for hunk in patch.hunks:
        at = places_of(hunk, files.get(hunk.path, ""))
        if hunk.path not in files:
            return Misfit(patch.name, f"{hunk.path} does not exist", hunk)
        if not at:
            return Misfit(patch.name, "its lines are gone", hunk)
        if len(at) > 1:
            # The tools would take the nearest one: right today, wrong after any edit in between.
            return Misfit(patch.name, f"its lines stand in {len(at)} places (lines {', '.join(map(str, at))})", hunk)
    return None


def _run(patches: Sequence[Patch], directory: Path, files: dict[str, str]) -> list[Misfit]:
    results = {}
    for tool, argv in _TOOLS.items():
        with tempfile.TemporaryDirectory(prefix="patches-") as scratch:
            for path, text in files.items():
                Path(scratch, path).parent.mkdir(parents=True, exist_ok=True)
                Path(scratch, path).write_text(text, errors="surrogateescape")
            for patch in patches:
                if said := _apply(argv, directory / patch.name, scratch):
                    return [Misfit(patch.name, f"{tool}: {said}")]
            results[tool] = [Path(scratch, path).read_text(errors="surrogateescape") for path in files]
    first, *others = results.values()
    if any(other != first for other in others):
        return [Misfit(patches[-1].name, f"{' and '.join(_TOOLS)} put it in different places")]
    return []


def _apply(argv: list[str], patch: Path, scratch: str) -> str:
    # The ceiling keeps git from taking paths as those of a repository around the scratch directory.
    environment = clean_environment() | {"GIT_CEILING_DIRECTORIES": os.path.dirname(scratch)}  # noqa: PTH120 (a string)
    with patch.open("rb") as text:
        done = subprocess.run(
            argv, cwd=scratch, env=environment, stdin=text, capture_output=True, timeout=_TOOL_LIMIT_S, check=False
        )
    said = (done.stderr or done.stdout).decode(errors="replace").strip()
    return (said or f"exited {done.returncode}") if done.returncode else ""
