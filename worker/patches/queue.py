"""The patch queue as data: UPSTREAM, series, patches and overlay, read without judging them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FIELD = re.compile(r"([A-Z][A-Za-z-]*):[ ]?(.*)")
_RANGE = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True)
class Problem:
    """A fault of the queue: which rule, where, what is wrong and what mends it."""

    rule: str
    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        """Return the problem as lines for a person, the mending indented."""
        return f"{self.where}: {self.what} [{self.rule}]" + (f"\n    {self.fix}" if self.fix else "")


@dataclass(frozen=True)
class Hunk:
    """One change of one file; `lines` keep their first character (space, minus, plus)."""

    path: str
    number: int
    lines: tuple[str, ...]

    @property
    def before(self) -> tuple[str, ...]:
        """The lines it looks for, without their first character."""
        return tuple(line[1:] for line in self.lines if line[:1] != "+")

    @property
    def added(self) -> tuple[str, ...]:
        """The lines it puts in, without their first character."""
        return tuple(line[1:] for line in self.lines if line[:1] == "+")

    @property
    def changed(self) -> int:
        """How many lines it puts in or takes out."""
        return sum(line[:1] in "+-" for line in self.lines if line)

    @property
    def context(self) -> tuple[int, int]:
        """How many unchanged lines stand before its first and after its last change."""
        marks = "".join(line[:1] or " " for line in self.lines)
        return len(marks) - len(marks.lstrip(" ")), len(marks) - len(marks.rstrip(" "))


@dataclass(frozen=True)
class Patch:
    """A patch file: its header fields, its hunks, and why it could not be read further, if so."""

    name: str
    fields: dict[str, str]
    hunks: tuple[Hunk, ...]
    fault: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it changes, relative to upstream's root, each once."""
        return tuple(dict.fromkeys(hunk.path for hunk in self.hunks))


@dataclass(frozen=True)
class Queue:
    """A directory of patches. `upstream` are the settings of UPSTREAM; `overlay` maps relative paths to Go source."""

    directory: Path
    upstream: dict[str, str]
    series: tuple[str, ...]
    patches: dict[str, Patch]
    overlay: dict[str, str]

    @property
    def in_order(self) -> tuple[Patch, ...]:
        """The patches as they are applied."""
        return tuple(self.patches[name] for name in self.series if name in self.patches)

    @property
    def shipped(self) -> tuple[str, ...]:
        """The overlay's files as they are copied into upstream's tree; what only tests the overlay stays behind."""
        return tuple(path for path in self.overlay if path.endswith(".go") and path.count("/") == 1)


def load_queue(directory: Path) -> Queue:
    """Read the queue in `directory`; what is missing is empty, so that the rules can say so.

    Raises NotADirectoryError when there is no such directory.
    """
    if not directory.is_dir():
        raise NotADirectoryError(f"no patch queue at {directory}")
    settings = [line.partition("=") for line in _lines(directory / "UPSTREAM")]
    overlay = directory / "overlay"
    files = sorted(path for path in overlay.rglob("*") if path.is_file())
    return Queue(
        directory=directory,
        upstream={key: value for key, _, value in settings},
        series=tuple(_lines(directory / "series")),
        patches={path.name: parse_patch(path.name, path.read_text()) for path in sorted(directory.glob("*.patch"))},
        overlay={path.relative_to(overlay).as_posix(): path.read_text() for path in files},
    )


def parse_patch(name: str, text: str) -> Patch:
    """Read a patch: DEP-3 fields up to the first line `---`, then a unified diff of existing files."""
    header, _, diff = text.partition("\n---\n")
    fields: dict[str, str] = {}
    field = ""
    for line in header.splitlines():
        if match := _FIELD.fullmatch(line):
            field, fields[match[1]] = match[1], match[2]
        elif field:
            fields[field] += "\n" + line.strip()
    hunks: list[Hunk] = []
    try:
        hunks.extend(_hunks(diff.splitlines()))
    except ValueError as error:
        return Patch(name, fields, (), str(error))
    return Patch(name, fields, tuple(hunks), "" if hunks else "it has no hunk after a line '---'")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


def _hunks(diff: list[str]) -> Iterator[Hunk]:
    path, number, rest = "", 0, iter(diff)
    for line in rest:
        if line.startswith("--- "):
            path = line[4:].split("\t")[0]
            if not path.startswith("a/"):
                raise ValueError(f"it changes {path}, which is not a file of upstream; new code belongs into overlay/")
        elif match := _RANGE.match(line):
            number += 1
            yield Hunk(path[2:], number, _body(rest, int(match[1] or 1), int(match[2] or 1), number))


def _body(rest: Iterator[str], old: int, new: int, number: int) -> tuple[str, ...]:
    lines = []
    while old or new:
        line = next(rest, "end of file")
        mark = line[:1] or " "  # editors strip the space of an empty context line
        if mark not in " +-" or old < (mark != "+") or new < (mark != "-"):
            raise ValueError(f"hunk {number} has not the number of lines its @@ line says (at {line!r})")
        old, new = old - (mark != "+"), new - (mark != "-")
        lines.append(mark + line[1:])
    return tuple(lines)
