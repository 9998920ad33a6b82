"""A Python package that is not installed, in a sentence."""

from __future__ import annotations


def missing(exc: ModuleNotFoundError) -> str:
    """Return what to do about `exc`; raise it when what is missing is a part of this project."""
    if (exc.name or "").partition(".")[0] in {"worker", "bench", "handler"}:
        raise exc
    use = ".venv/bin/python -m worker, or PYTHON=.venv/bin/python ./start.sh"
    return f"The Python package {exc.name!r} is missing: run `make run` once, then use {use}"
