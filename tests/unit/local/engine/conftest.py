from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
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
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session
