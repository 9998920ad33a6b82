from __future__ import annotations

from pathlib import Path

import pytest

from worker import folders

VOLUME_STORE = Path("/runpod-volume/ollama/models")
HOME_STORE = Path("/root/.ollama/models")


@pytest.mark.parametrize(
    ("environ", "home", "volume", "store"),
    [
        ({}, "/root/.ollama", "/runpod-volume", "/root/.ollama/models"),
        # A blank value counts as unset, as it does for Ollama.
        ({"HOME": " ", "WORKER_VOLUME": "", "OLLAMA_MODELS": " "}, "/root/.ollama", "/runpod-volume", str(HOME_STORE)),
        ({"HOME": "/elsewhere", "WORKER_VOLUME": "/mnt"}, "/elsewhere/.ollama", "/mnt", "/elsewhere/.ollama/models"),
        ({"OLLAMA_MODELS": " /models/ "}, "/root/.ollama", "/runpod-volume", "/models"),
    ],
)
def test_the_environment_says_where_things_lie(environ: dict[str, str], home: str, volume: str, store: str) -> None:
    assert folders.home(environ) == Path(home)
    assert folders.volume(environ) == Path(volume)
    assert folders.store(environ) == Path(store)


@pytest.mark.parametrize(
    ("environ", "order"),
    [
        ({}, [HOME_STORE, folders.BAKED, VOLUME_STORE]),
        ({"OLLAMA_MODELS": str(VOLUME_STORE)}, [VOLUME_STORE, folders.BAKED, HOME_STORE]),
        ({"OLLAMA_MODELS": "/models"}, [Path("/models"), folders.BAKED, VOLUME_STORE, HOME_STORE]),
        ({"OLLAMA_MODELS": str(folders.BAKED)}, [folders.BAKED, VOLUME_STORE, HOME_STORE]),
    ],
)
def test_the_store_that_is_filled_is_searched_first_and_none_twice(environ: dict[str, str], order: list[Path]) -> None:
    assert folders.stores(environ) == tuple(order)
