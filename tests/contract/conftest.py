from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes import chat_templates, tiny_gguf
from tests.fakes.api_server import KINDS, ApiServer
from worker.local.engine.store import register_gguf, smollm2_gguf

# The fake has no files; this makes it know the same models and what they can do.
FAKE_MODELS = "smol,tools=completion+tools,think=completion+thinking,embed=embedding,broken=broken"
# Enough for cutting the small model's file off in the middle of its weights.
BROKEN_BYTES = 3_000_000


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """GGUF files by the name they get in every store."""
    place = tmp_path_factory.mktemp("gguf")
    small = smollm2_gguf()
    broken = place / "broken.gguf"
    with small.open("rb") as file:
        broken.write_bytes(file.read(BROKEN_BYTES))
    return {
        "smol": small,
        "tools": tiny_gguf.retemplated(small, place / "tools.gguf", chat_templates.TOOLS),
        "think": tiny_gguf.retemplated(small, place / "think.gguf", chat_templates.THINKING),
        "embed": tiny_gguf.embedding_model(place / "embed.gguf"),
        "broken": broken,
    }


@pytest.fixture(scope="session")
def model_store(model_files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds them all; nothing writes to it."""
    models = tmp_path_factory.mktemp("store")
    for name, path in model_files.items():
        register_gguf(models, name, path)
    return models


@pytest.fixture(scope="session", params=KINDS)
def api(
    request: pytest.FixtureRequest, model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    """The server under contract, one process per kind for the whole session."""
    settings = {"OLLAMA_MODELS": str(model_store), "OLLAMA_NUM_PARALLEL": "2", "FAKE_MODELS": FAKE_MODELS}
    # Room for every model that works, so that no test pays for what another loaded.
    settings["OLLAMA_MAX_LOADED_MODELS"] = "4"
    with ApiServer(request.param, tmp_path_factory.mktemp(request.param), **settings) as server:
        yield server


StartApi = Callable[..., ApiServer]


@pytest.fixture(params=KINDS)
def start_api(request: pytest.FixtureRequest, model_store: Path, tmp_path: Path) -> Iterator[StartApi]:
    """Start a server of one's own, with keywords as its environment; for tests that wear it out."""
    with ExitStack() as stack:

        def start(**settings: str) -> ApiServer:
            common = {"OLLAMA_MODELS": str(model_store), "FAKE_MODELS": FAKE_MODELS}
            return stack.enter_context(ApiServer(request.param, tmp_path / "home", **common, **settings))

        yield start
