from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest

from worker.local.engine.options import RunnerOptions
from worker.local.engine.runner import RunnerSpec

LLAMA = Path(__file__).resolve().parents[3] / "fakes" / "llama_process.py"


@dataclass(frozen=True)
class ScriptedSpec(RunnerSpec):
    """Starts the scripted process instead of llama.cpp; the model's path is the script's mode."""

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(LLAMA), Path(self.path).name]


NewSpec = Callable[..., ScriptedSpec]


@pytest.fixture
def new_spec() -> NewSpec:
    def make(mode: str = "serve", *, slots: int = 1, context: int = 100, shift: bool = True) -> ScriptedSpec:
        return ScriptedSpec(mode, RunnerOptions(context, 512, 0, shift), slots, embedding=False)

    return make


@pytest.fixture
def runners() -> Callable[[], list[psutil.Process]]:
    """Find the scripted processes that this test process has started and that still live."""

    def find() -> list[psutil.Process]:
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if str(LLAMA) in process.cmdline():
                    found.append(process)
        return found

    return find


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session
