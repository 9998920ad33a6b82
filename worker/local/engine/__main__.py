"""`python -m worker.local.engine serve`: the development server that stands where `ollama serve` stands."""

from __future__ import annotations

import asyncio
import os
import sys

USAGE = "usage: python -m worker.local.engine serve"


def main(argv: list[str]) -> int:
    """Run the server, or, for the server's own use, one of its runner processes; return the exit status."""
    if argv[:1] == ["runner"]:
        from worker.local.engine import llama  # noqa: PLC0415 - a runner must start without the server's imports

        return llama.main(argv[1:])
    if argv != ["serve"]:
        print(USAGE, file=sys.stderr)
        return 2
    from worker.local.engine import serve  # noqa: PLC0415 - and the server without llama.cpp's
    from worker.local.engine.settings import Settings  # noqa: PLC0415 - same

    try:
        asyncio.run(serve.run(Settings.from_environment(os.environ)))
    except OSError as error:
        print(f"Error: listen tcp: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
