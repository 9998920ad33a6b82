"""Upstream's source as git objects: releases, files and where a line stands, from a checkout or a bare repository."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_GIT_LIMIT_S = 120
_RELEASE = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:-rc(\d+))?")


@dataclass(frozen=True)
class Release:
    """A tagged release and the commit it names."""

    tag: str
    commit: str


class SourceUnreadable(Exception):
    """There is no repository of upstream, or an object is not in it; says what git said."""


def clean_environment() -> dict[str, str]:
    """Return our environment without what would point git elsewhere, translate its words or make it download."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"LC_ALL": "C", "GIT_NO_LAZY_FETCH": "1"}


def release_order(tag: str) -> tuple[int, int, int, float] | None:
    """Return a key that sorts releases, a candidate before its final; None for a tag that is no release."""
    match = _RELEASE.fullmatch(tag)
    if not match:
        return None
    major, minor, patch, candidate = match.groups()
    return int(major), int(minor), int(patch), float(candidate) if candidate else float("inf")


class Source:
    """A repository of upstream. Reads objects only: no work tree is needed, none is touched."""

    def __init__(self, path: Path) -> None:
        """Open the repository at `path`. Raises SourceUnreadable when there is none."""
        self.path = path
        self._git_dir = ""
        # A copy made by another user is fine to read: nothing of it is executed.
        self._git_dir = self._git("-C", str(path), "rev-parse", "--absolute-git-dir").strip()

    def releases(self, oldest: str) -> list[Release]:
        """Return the releases from tag `oldest` on, in order."""
        start = release_order(oldest)
        found = []
        # *objectname is the commit behind an annotated tag, empty for a plain one.
        listing = self._git("for-each-ref", "refs/tags", "--format=%(refname:strip=2) %(objectname) %(*objectname)")
        for line in listing.splitlines():
            tag, *objects = line.split()
            order = release_order(tag)
            if order and start and order >= start:
                found.append((order, Release(tag, objects[-1])))
        return [release for _, release in sorted(found, key=lambda pair: pair[0])]

    def has(self, commit: str) -> bool:
        """Say whether `commit` is in the repository."""
        try:
            self._git("cat-file", "-e", commit + "^{commit}")
        except SourceUnreadable:
            return False
        return True

    def objects(self, revision: str, paths: list[str]) -> dict[str, str]:
        """Return the object of each of `paths` (files or directories) that exists at `revision`."""
        listing = self._git("ls-tree", "-z", revision, "--", *paths)
        found = {}
        for entry in filter(None, listing.split("\0")):
            facts, _, path = entry.partition("\t")
            found[path] = facts.split()[2]
        return found

    def text(self, blob: str) -> str:
        """Return the content of a file object."""
        return self._git("cat-file", "blob", blob)

    def places(self, revision: str, line: str) -> list[tuple[str, int]]:
        """Return file and line number of every Go line at `revision` that contains `line`."""
        try:
            listing = self._git("grep", "-n", "-z", "-F", "-e", line, revision, "--", "*.go")
        except SourceUnreadable:
            return []  # git grep exits 1 when nothing matches
        found = []
        for hit in listing.splitlines():
            name, number, _ = hit.split("\0", 2)
            found.append((name.removeprefix(revision + ":"), int(number)))
        return found

    def _git(self, *arguments: str) -> str:
        where = [f"--git-dir={self._git_dir}"] if self._git_dir else []
        argv = ["git", "-c", "safe.directory=*", *where, *arguments]
        done = subprocess.run(argv, env=clean_environment(), capture_output=True, timeout=_GIT_LIMIT_S, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip() or f"git {arguments[0]} exited {done.returncode}"
            raise SourceUnreadable(f"{self.path}: {said}")
        return done.stdout.decode(errors="surrogateescape")
