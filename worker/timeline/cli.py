"""The command `timeline`: one log drawn, or two compared."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from worker.timeline import compare, export, model, parse, render
from worker.timeline.model import Timeline
from worker.timeline.parse import UnreadableLog
from worker.timeline.render import Style

UNUSABLE_INPUT = 2
_LEAST_WIDTH = 72


def main(argv: Sequence[str]) -> int:
    """Run `timeline FILE [FILE2]`; `-` is standard input. Returns 0, or 2 with one sentence when an input is unusable.

    Raises `SystemExit` for `--help` and for arguments that make no sense, as argparse does.
    """
    options = _parser().parse_args(argv)
    try:
        logs = [_read(name) for name in (options.file, options.other) if name is not None]
    except UnreadableLog as problem:
        sys.stderr.write(f"timeline: {problem}\n")
        return UNUSABLE_INPUT
    text = _json(logs) if options.json else _text(logs, _style(options))
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough; Python would complain about the rest on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m worker timeline",
        description="Say where the seconds of a cold start went: from this worker's log, from any Ollama's output, or "
        "from a console's export of either. With two logs, compare their first starts.",
    )
    parser.add_argument("file", metavar="FILE", help="a log, or - for standard input")
    parser.add_argument("other", metavar="FILE2", nargs="?", help="a second log, to compare the first with")
    parser.add_argument("--json", action="store_true", help="print data instead of a picture")
    parser.add_argument("--width", type=_width, help="characters per line, 72 or more; the terminal's if not given")
    parser.add_argument("--colour", action="store_true", help="colour the picture")
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    return parser


def _width(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= _LEAST_WIDTH):
        raise argparse.ArgumentTypeError(f"{text!r} is no width the picture fits in: say {_LEAST_WIDTH} or more")
    return int(text)


def _style(options: argparse.Namespace) -> Style:
    width = options.width if options.width is not None else shutil.get_terminal_size((80, 24)).columns
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return Style(
        width=max(_LEAST_WIDTH, width),
        colour=options.colour,
        ascii_only=options.ascii or not encoding.startswith("utf"),
    )


def _read(name: str) -> tuple[Timeline, ...]:
    shown = "standard input" if name == "-" else name
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise UnreadableLog(f"{shown}: {reason}") from problem
    # A PowerShell redirection writes UTF-16.
    encoding = "utf-16" if content[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    try:
        return model.timelines(parse.read(content.decode(encoding, errors="replace")))
    except UnreadableLog as problem:
        raise UnreadableLog(f"{shown}: {problem}") from problem


def _text(logs: Sequence[tuple[Timeline, ...]], style: Style) -> str:
    if len(logs) == 1:
        return render.render(logs[0], style)
    return compare.render(logs[0][0], logs[1][0])


def _json(logs: Sequence[tuple[Timeline, ...]]) -> str:
    if len(logs) == 1:
        told = {"boots": [export.to_dict(timeline) for timeline in logs[0]]}
    else:
        told = export.comparison(logs[0][0], logs[1][0])
    return json.dumps(told, indent=1) + "\n"
