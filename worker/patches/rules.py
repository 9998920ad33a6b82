"""What a patch queue must look like, whatever upstream looks like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from worker.patches.overlay import overlay_problems
from worker.patches.queue import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.patches.queue import Patch, Queue

CHANGED_LINES = 6  # a patch above this carries code that belongs into the overlay
CONTEXT_LINES = 1  # each line more is one more that upstream can break by touching it

_UPSTREAM = {
    "OLLAMA_REPOSITORY": r"https://\S+",
    "OLLAMA_TAG": r"v\d+\.\d+\.\d+(-rc\d+)?",
    "OLLAMA_COMMIT": r"[0-9a-f]{40}",
    "OLLAMA_OLDEST": r"v\d+\.\d+\.\d+(-rc\d+)?",
}
_FORWARDED = r"no|not-needed|https://\S+"
_WHY = ("Measured", "Reason")


def check_static(queue: Queue) -> list[Problem]:
    """Return every breach of the rules that need no source of upstream; the overlay's format needs a Go toolchain."""
    found = [*_upstream_problems(queue), *_series_problems(queue)]
    for patch in queue.patches.values():
        found += [*_header_problems(patch), *_size_problems(patch)]
    return [*found, *overlay_problems(queue)]


def _upstream_problems(queue: Queue) -> Iterator[Problem]:
    for key, pattern in _UPSTREAM.items():
        value = queue.upstream.get(key, "")
        if not re.fullmatch(pattern, value):
            yield Problem("upstream", "UPSTREAM", f"{key} is {value!r}", f"it has to match {pattern}")
    for key in queue.upstream.keys() - _UPSTREAM.keys():
        yield Problem("upstream", "UPSTREAM", f"{key!r} means nothing", f"known are {', '.join(_UPSTREAM)}")


def _series_problems(queue: Queue) -> Iterator[Problem]:
    for name in dict.fromkeys(queue.series):
        if queue.series.count(name) > 1:
            yield Problem("series", "series", f"{name} is listed twice")
        if name not in queue.patches:
            yield Problem("series", "series", f"{name} is listed but does not exist")
    for name in queue.patches:
        if name not in queue.series:
            yield Problem("series", name, "it is not in series, so it is never applied", "list it or delete it")
        if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.patch", name):
            yield Problem("series", name, "its name is not NNNN-what-it-does.patch")
    if list(queue.series) != sorted(queue.series):
        yield Problem("series", "series", "the order is not that of the numbers in the names")


def _header_problems(patch: Patch) -> Iterator[Problem]:
    title, _, reasons = patch.fields.get("Description", "").partition("\n")
    if not title or not reasons.strip():
        yield Problem("header", patch.name, "Description needs one line of what and further lines of why")
    if not re.fullmatch(_FORWARDED, patch.fields.get("Forwarded", "")):
        yield Problem("header", patch.name, "Forwarded has to be no, not-needed or the address of the pull request")
    if not any(patch.fields.get(field, "").strip() for field in _WHY):
        yield Problem("header", patch.name, "it gives neither a figure (Measured) nor why it is correct (Reason)")
    if not patch.fields.get("Drop-When", "").strip():
        yield Problem("header", patch.name, "Drop-When does not say which change of upstream makes it superfluous")


def _size_problems(patch: Patch) -> Iterator[Problem]:
    if patch.fault:
        yield Problem("diff", patch.name, patch.fault, "write the diff with 'python -m worker patches refresh'")
    changed = sum(hunk.changed for hunk in patch.hunks)
    if changed > CHANGED_LINES:
        yield Problem("size", patch.name, f"it changes {changed} lines, the budget is {CHANGED_LINES}", "move code out")
    for hunk in patch.hunks:
        if hunk.context != (CONTEXT_LINES, CONTEXT_LINES):
            # Unequal context makes `patch` tie the hunk to an end of the file.
            what = f"hunk {hunk.number} has {hunk.context[0]} and {hunk.context[1]} lines of context"
            yield Problem("size", patch.name, what, f"{CONTEXT_LINES} on each side, as 'diff -U{CONTEXT_LINES}' writes")
