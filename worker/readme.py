"""The generated blocks of README.md and docs/figures.md: what the code says, and what the benches measured."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import environment, figures
from worker.config import Config, variables
from worker.errors import BootError, JobError, WorkerError
from worker.shapes import SHAPES

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(text: str, results: Path) -> str:
    """Return a page's `text` with every generated block made anew; `results` is the folder of bench results.

    Raises:
        KeyError: a block has a name nobody generates.
    """
    makers: dict[str, Callable[[], str]] = {
        "configuration": configuration,
        "server": server_settings,
        "errors": errors,
        "jobs": jobs,
        "boot": lambda: figures.boot(results),
        "cold_start": lambda: figures.cold_start(results),
        "proxy": lambda: figures.proxy(results),
        "landing": lambda: figures.landing(results),
        "transfer": lambda: figures.transfer(results),
    }
    return _BLOCK.sub(lambda match: f"{match[1]}{makers[match[2]]()}\n{match[3]}", text)


def configuration() -> str:
    """Return the table of the worker's own variables."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, names in variables().items():
        field = Config.model_fields[name]
        if not str(field.description).startswith("Set by"):
            shown = " or ".join(f"`{variable}`" for variable in names)
            rows.append(f"| {shown} | {_default(field.default)} | {field.description} |")
    return "\n".join(rows)


def server_settings() -> str:
    """Return the table of what is set for the server unless the user set it."""
    rows = ["| server's variable | value | why |", "| --- | --- | --- |"]
    rows += [f"| `{s.name}` | `{s.value}` | {s.reason} |" for s in environment.settings({})]
    return "\n".join(rows)


def errors() -> str:
    """Return the table of failures: exit codes of the worker, statuses of jobs."""
    rows = ["| failure | the worker | a job | meaning |", "| --- | --- | --- | --- |"]
    for kind in _leaves(WorkerError):
        summary = str(kind.__doc__).split("\n", maxsplit=1)[0]
        worker = f"exits with {kind.exit_code}" if issubclass(kind, BootError) else "lives on"
        status = "" if not issubclass(kind, JobError) else "the server's" if kind.code == "api_error" else kind.status
        again = " Worth a retry." if kind.retryable else ""
        rows.append(f"| `{kind.__name__}` | {worker} | {status} | {summary}{again} |")
    return "\n".join(rows)


def jobs() -> str:
    """Return the table of what a job may look like and what comes back."""
    rows = ["| sender | `input` | answer | streamed | an error |", "| --- | --- | --- | --- | --- |"]
    for shape in SHAPES.values():
        example = json.dumps(shape.example, ensure_ascii=False)
        note = f"<br>{shape.note}" if shape.note else ""
        streams = shape.streams or "not streamed"
        rows.append(f"| {shape.sender} | `{example}`{note} | {shape.answer} | {streams} | {shape.error} |")
    return "\n".join(rows)


def _leaves(kind: type[WorkerError]) -> list[type[WorkerError]]:
    children = kind.__subclasses__()
    return [leaf for child in children for leaf in _leaves(child)] if children else [kind]


def _default(value: Any) -> str:
    if value is None or value == ():
        return ""
    return (
        f"`{int(value) if isinstance(value, bool) else value:g}`" if isinstance(value, (bool, float)) else f"`{value}`"
    )
