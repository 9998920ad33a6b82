"""Characters of several bytes survive a server that sends every byte on its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from worker.local.process import WorkerProcess
from worker.local.queue import LocalQueue

if TYPE_CHECKING:
    from tests.conftest import Workers

LIMIT_S = 60.0
TEXT = "é 東京 한국어 🦙 👩‍🚀 ﷽ \u2028 end\r\n\n data: [DONE] \x7f"
CHAT = {"messages": [{"role": "user", "content": "🙂"}]}
JOBS = {
    "stock-stream": {**CHAT, "stream": True},
    "stock-prompt-stream": {"prompt": "🙂", "stream": True},
    "stock": CHAT,
    "native-stream": {"route": "/api/chat", "body": {**CHAT, "stream": True}},
    "native": {"route": "/api/generate", "body": {"prompt": "🙂"}},
    "openai-stream": {"openai_route": "/v1/chat/completions", "openai_input": {**CHAT, "stream": True}},
    "openai-text-stream": {"openai_route": "/v1/completions", "openai_input": {"prompt": "🙂", "stream": True}},
    "openai": {"openai_route": "/v1/chat/completions", "openai_input": CHAT},
}


@pytest.fixture(scope="module")
def queue() -> Iterator[LocalQueue]:
    with LocalQueue() as running:
        yield running


@pytest.fixture(scope="module")
def worker(queue: LocalQueue, module_workers: Workers) -> WorkerProcess:
    return module_workers.start(queue, FAKE_SPLIT="1", FAKE_TEXT=TEXT)


@pytest.mark.parametrize("shape", JOBS)
def test_no_character_is_broken(
    queue: LocalQueue, worker: WorkerProcess, text_of: Callable[[list[Any]], str], shape: str
) -> None:
    status = queue.wait(queue.submit(JOBS[shape]), LIMIT_S)
    assert status["status"] == "COMPLETED", worker.tail()
    assert text_of(status["output"]) == TEXT
    assert "\ufffd" not in json.dumps(status["output"], ensure_ascii=False)
