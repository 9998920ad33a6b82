"""Log lines in the form of Ollama's: `time=… level=INFO source=file.py:12 msg="…" key=value` on stderr."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:[]+,")


def info(message: str, **fields: Any) -> None:
    """Write an INFO line."""
    _write("INFO", message, fields)


def warn(message: str, **fields: Any) -> None:
    """Write a WARN line."""
    _write("WARN", message, fields)


def raw(line: str) -> None:
    """Write a line of the runner as it came."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def access(status: int, seconds: float, client: str, call: str) -> None:
    """Write the line that follows every HTTP call, on stdout as Ollama does; `call` is method and path."""
    method, _, path = call.partition(" ")
    took = f"{seconds:.9f}s" if seconds >= 1 else f"{seconds * 1000:.6f}ms"
    at = datetime.now().astimezone().strftime("%Y/%m/%d - %H:%M:%S")
    sys.stdout.write(f'[GIN] {at} | {status} | {took:>13} | {client:>15} | {method:<8} "{path}"\n')
    sys.stdout.flush()


def _write(level: str, message: str, fields: dict[str, Any]) -> None:
    # Two frames up is the caller of info() or warn(); Ollama names its source file the same way.
    caller = sys._getframe(2)  # noqa: SLF001 - the documented way to a caller's file without the cost of a traceback
    source = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
    at = datetime.now().astimezone().isoformat(timespec="milliseconds")
    parts = [f"time={at}", f"level={level}", f"source={source}", f"msg={_quoted(message)}"]
    parts += [f"{key}={_quoted(str(value))}" for key, value in fields.items()]
    raw(" ".join(parts))


def _quoted(text: str) -> str:
    return text if text and set(text) <= _PLAIN else json.dumps(text, ensure_ascii=False)
