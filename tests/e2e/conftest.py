from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from bench.latfuse import build
from bench.programs import Unavailable
from worker.local.process import WorkerProcess

LIMIT_S = 60.0


class FakeControl:
    """The fake server of a worker, as it sees itself."""

    def __init__(self, worker: WorkerProcess) -> None:
        line = next(record["line"] for record in worker.records if "Listening on" in record.get("line", ""))
        self.url = f"http://{line.rpartition('Listening on ')[2].strip().rstrip(chr(34))}"
        self._url = f"{self.url}/fake"

    def stats(self) -> dict[str, Any]:
        return requests.get(f"{self._url}/stats", timeout=LIMIT_S).json()

    def turn(self, **knobs: Any) -> None:
        requests.post(f"{self._url}/script", json=knobs, timeout=LIMIT_S).raise_for_status()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The filesystem that tests slow down, stop and fill, compiled."""
    try:
        return build(tmp_path_factory.mktemp("latfuse"))
    except Unavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def fake_of() -> Callable[[WorkerProcess], FakeControl]:
    return FakeControl


@pytest.fixture(scope="session")
def text_of() -> Callable[[list[Any]], str]:
    """Return what a job's chunks say, whatever its shape: native objects, their JSON text, or event streams."""

    def text(chunks: list[Any]) -> str:
        return "".join(_text(chunk) for chunk in chunks)

    return text


def _text(chunk: Any) -> str:
    if isinstance(chunk, str) and chunk.startswith(("data: ", "event: ")):
        frames = [frame.rpartition("data: ")[2] for frame in chunk.split("\n\n") if frame]
        return "".join(_text(frame) for frame in frames if frame != "[DONE]")
    value = json.loads(chunk) if isinstance(chunk, str) else chunk
    if "type" in value:
        # Anthropic's: a whole message, or an event that may carry a piece of one.
        parts = value.get("content", [value.get("delta", {})])
        return "".join(part.get("text", "") for part in parts)
    if "choices" in value:
        parts = [choice.get("delta") or choice.get("message") or choice for choice in value["choices"]]
        return "".join(part.get("content", part.get("text")) or "" for part in parts)
    return value["response"] if "response" in value else value["message"]["content"]
