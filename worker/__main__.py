"""The command line: everything a person asks of the worker outside its container's life."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("timeline", help="where the seconds of a cold start went, from a log", add_help=False)
    commands.add_parser("patches", help="check the patch queue", add_help=False)
    local = commands.add_parser("local", help="run everything on this machine (development)")
    modes = local.add_subparsers(dest="mode", required=True)
    run = modes.add_parser("run", help="answer one question and show the timeline")
    run.add_argument("--ask", default="", help="the question")
    serve = modes.add_parser("serve", help="keep a queue and a worker running")
    serve.add_argument("--port", type=int, default=8000, help="port of the local queue; 0 takes a free one")
    known, rest = parser.parse_known_args(arguments)
    if known.command == "local":
        parser.parse_args(arguments)
        from worker.local import demo  # noqa: PLC0415 - the image has no development packages

        return demo.run(known.ask or demo.QUESTION) if known.mode == "run" else demo.serve(known.port)
    if known.command == "patches":
        from worker.patches import main as patches_main  # noqa: PLC0415 - needs git and go, not the worker

        return patches_main(rest)
    from worker.timeline import main as timeline_main  # noqa: PLC0415 - the other commands do without

    return timeline_main(rest)


if __name__ == "__main__":
    sys.exit(main())
