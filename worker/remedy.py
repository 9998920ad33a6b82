"""What to do about a server that ended by itself, judged from what it said last; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.environment import DEFAULT_HOST

# For a local run the command is made of OLLAMA_BIN.
_COMMAND = "WORKER_SERVER_COMMAND (with `make run`: OLLAMA_BIN)"
_ANOTHER_HOST = "127.0.0.1:11435"
_SHOWN_LINES = 3


def absent(environ: Mapping[str, str]) -> str:
    """Return what to do when the server's program is not there."""
    if environ.get("WORKER_SERVER_COMMAND", "").strip():
        return f"Check {_COMMAND}: the program must be here and executable"
    return "Install Ollama, or set WORKER_SERVER_COMMAND to the command line that starts it"


def after_end(return_code: int, log_tail: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what to do about an end; a negative `return_code` is the signal that caused it.

    The last line of the log is not repeated: the error has it.
    """
    lines = [line.strip() for line in log_tail if line.strip()][-_SHOWN_LINES:]
    if any("listen tcp" in line for line in lines):
        return _listening(" ".join(lines).lower(), environ.get("OLLAMA_HOST", "").strip() or DEFAULT_HOST)
    if lines:
        return f"Before that it logged: {' | '.join(lines[:-1])}" if lines[:-1] else ""
    if return_code < 0:
        return "It logged nothing"
    return f"It logged nothing, as no Ollama does: check {_COMMAND}"


def _listening(said: str, host: str) -> str:
    if "in use" in said:
        return f"OLLAMA_HOST is {host}: end what listens there, or set OLLAMA_HOST to a free port, as {_ANOTHER_HOST}"
    return f"OLLAMA_HOST is {host}: set it to an address of this machine and a port, as {DEFAULT_HOST}"
