"""The quantization a GGUF's file name tells, and which names a wanted one means; pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

BORDERS = "-_./"
PROJECTOR_MARK = "mmproj"
# Files of a GGUF repository that are no model: projectors, and the statistics quantizations were made with.
_ASIDE = re.compile(rf"(?:^|[{BORDERS}])({PROJECTOR_MARK}|imatrix)(?:$|[{BORDERS}])", re.IGNORECASE)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
# `UD-` is a recipe of its own: UD-Q4_K_XL and Q4_K_XL may stand side by side in one repository.
_LABEL = re.compile(
    rf"(?<![^{BORDERS}])((?:UD-)?(?:"
    r"I?Q\d(?:(?:_(?:K|NL|XXS|XS|S|M|L|XL|P|\d))+|(?!_))"
    r"|TQ\d_\d|BF16|FP?16|FP?32|FP?64|(?:MX|NV)FP4(?:_MOE)?"
    rf"))(?![^{BORDERS}])",
    re.IGNORECASE,
)


def normalised(quantization: str) -> str:
    """Return the one spelling of a quantization: upper case, F16 for FP16."""
    return re.sub(r"^FP(16|32|64)$", r"F\1", quantization.strip().upper())


def stem(path: str) -> str:
    """Return a GGUF's path without `.gguf` and without the number of its part."""
    return _SHARD.sub("", re.sub(r"\.gguf$", "", path, flags=re.IGNORECASE))


def part_of(path: str) -> tuple[int, int] | None:
    """Return (number, count) of a file that is one part of a split GGUF, numbers from 1, else None."""
    found = _SHARD.search(re.sub(r"\.gguf$", "", path, flags=re.IGNORECASE))
    return (int(found[1]), int(found[2])) if found else None


def is_projector(path: str) -> bool:
    """Return whether a file's own name says that it is a projector."""
    found = _ASIDE.search(PurePosixPath(stem(path)).name)
    return found is not None and found[1].lower() == PROJECTOR_MARK


def is_model(path: str) -> bool:
    """Return whether a file is a GGUF and not a projector or another companion."""
    return path.lower().endswith(".gguf") and not _ASIDE.search(PurePosixPath(stem(path)).name)


def label_of(path: str) -> str:
    """Return the quantization a path tells (its last one, the file's own name before its folders), or ""."""
    for part in reversed(PurePosixPath(stem(path)).parts):
        found = _LABEL.findall(part)
        if found:
            return normalised(found[-1])
    return ""


def matches(path: str, wanted: str) -> int:
    """Return how well a path fits a wanted quantization: 0 not at all, 3 exactly.

    2: the label but for a recipe's prefix (`UD-`). 1: no known label, but the text stands in the name between borders.
    """
    label, wanted = label_of(path), normalised(wanted)
    if label == wanted:
        return 3
    if label.removeprefix("UD-") == wanted:
        return 2
    known = {normalised(text) for text in _LABEL.findall(wanted)}
    unlabelled = _LABEL.sub("", stem(path))
    literal = rf"(?<![^{BORDERS}]){re.escape(wanted)}(?![^{BORDERS}])"
    return int(bool(wanted) and wanted not in known and bool(re.search(literal, unlabelled, re.IGNORECASE)))
