"""The command `python -m worker patches`: check the queue, or write a patch anew from an edited tree."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from worker.patches.fit import check_source, same_sources
from worker.patches.queue import load_queue
from worker.patches.rules import CONTEXT_LINES, check_static
from worker.patches.source import Source, SourceUnreadable, clean_environment

if TYPE_CHECKING:
    from worker.patches.queue import Problem, Queue

QUEUE = Path(__file__).resolve().parents[2] / "patches"
_GIT_LIMIT_S = 60


def main(argv: list[str]) -> int:
    """Run `check [--source DIR]` or `refresh PATCH TREE`; return the exit status, 1 when there are problems."""
    parser = argparse.ArgumentParser(prog="python -m worker patches", description=__doc__)
    parser.add_argument("--queue", type=Path, default=QUEUE, help="the directory with UPSTREAM and series")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="judge the queue, with a source also whether it fits")
    check.add_argument("--source", type=Path, default=os.environ.get("OLLAMA_SRC") or None, help="default: OLLAMA_SRC")
    refresh = commands.add_parser("refresh", help="replace the diff of a patch by that of an edited checkout")
    refresh.add_argument("patch")
    refresh.add_argument("tree", type=Path)
    options = parser.parse_args(argv)
    try:
        if options.command == "refresh":
            refresh_patch(options.queue / options.patch, options.tree)
        return _check(load_queue(options.queue), options.source if options.command == "check" else None)
    except (OSError, SourceUnreadable) as error:
        _say(f"patches: {error}")
        return 1


def refresh_patch(patch: Path, tree: Path) -> None:
    """Keep the header of `patch` and replace its diff by the uncommitted changes in `tree`.

    Raises SourceUnreadable when `tree` is no checkout or nothing in it was changed.
    """
    argv = ["git", "-C", str(tree), "-c", "safe.directory=*", "diff", f"-U{CONTEXT_LINES}", "--no-ext-diff"]
    options = ["--no-color", "--src-prefix=a/", "--dst-prefix=b/"]
    done = subprocess.run(
        [*argv, *options], env=clean_environment(), capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=False
    )
    if done.returncode or not done.stdout:
        raise SourceUnreadable(f"{tree}: {done.stderr.strip() or 'nothing was changed there'}")
    kept = [line for line in done.stdout.splitlines(keepends=True) if not line.startswith(("diff ", "index "))]
    # What git prints after the second @@ is a line of upstream we have no need to carry.
    diff = re.sub(r"^(@@ [^@]+ @@).*$", r"\1", "".join(kept), flags=re.MULTILINE)
    header = patch.read_text().partition("\n---\n")[0]
    patch.write_text(f"{header}\n---\n{diff}")


def _check(queue: Queue, src: Path | None) -> int:
    problems = check_static(queue)
    fitted = ""
    if not problems and src is not None:
        problems = check_source(queue, src)
        groups = same_sources(queue, Source(src))
        tags = [release.tag for group in groups for release in group]
        fitted = f" and fit {len(tags)} revisions of upstream ({len(groups)} different)"
    return _report(problems, f"{len(queue.patches)} patches are in order{fitted}")


def _report(problems: list[Problem], good: str) -> int:
    for problem in problems:
        _say(str(problem))
    _say(f"patches: {len(problems)} problems" if problems else f"patches: {good}")
    return 1 if problems else 0


def _say(line: str) -> None:
    sys.stdout.write(line + os.linesep)
