"""A worker made of nothing but the SDK: handlers that do what their job's input says."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Importing runpod asks cpuinfo for the clock rate, which sleeps a second in a process of its own.
sys.modules["cpuinfo"] = types.SimpleNamespace(get_cpu_info=dict)  # type: ignore[assignment]

import runpod  # noqa: E402 - the stand-in must come first

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


async def stream(job: dict[str, Any]) -> AsyncIterator[Any]:
    """Yield `yields`, `gap_s` seconds after each; an OpenAI body carries these fields in `script`."""
    job_input = job["input"] or {}
    script = (job_input.get("openai_input") or {}).get("script", job_input)
    try:
        for output in script.get("yields", []):
            yield output
            await asyncio.sleep(script.get("gap_s", 0.0))
    except asyncio.CancelledError:
        _note(script, "cancelled")
        raise


def stream_sync(job: dict[str, Any]) -> Iterator[Any]:
    """Yield the same and block the SDK's loop meanwhile."""
    for output in job["input"]["yields"]:
        yield output
        time.sleep(job["input"].get("gap_s", 0.0))


async def answer(job: dict[str, Any]) -> Any:
    """Return `result` after `gap_s` seconds, or raise `raises`; with `swallow` a cancellation is survived."""
    job_input = job["input"]
    if "progress" in job_input:
        runpod.serverless.progress_update(job, job_input["progress"])
    try:
        await asyncio.sleep(job_input.get("gap_s", 0.0))
    except asyncio.CancelledError:
        _note(job_input, "cancelled")
        if not job_input.get("swallow"):
            raise
    if "raises" in job_input:
        raise RuntimeError(job_input["raises"])
    return job_input.get("result")


def _note(script: dict[str, Any], text: str) -> None:
    if "note" in script:
        Path(script["note"]).write_text(text, encoding="utf-8")


def _main() -> None:
    concurrency = int(os.environ["SDK_WORKER_CONCURRENCY"])
    handlers = {"stream": stream, "stream_sync": stream_sync, "answer": answer}
    runpod.serverless.start(
        {
            "handler": handlers[sys.argv[1]],
            "return_aggregate_stream": os.environ["SDK_WORKER_AGGREGATE"] == "1",
            "concurrency_modifier": lambda _: concurrency,
        }
    )
    sys.stdout.write("start() has returned\n")


if __name__ == "__main__":
    _main()
