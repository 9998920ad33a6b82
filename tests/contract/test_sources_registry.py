from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.api_server import ApiServer
from tests.fakes.range_server import Fault, RangeServer, Request
from tests.fakes.registry_server import FakeRegistry
from tests.fakes.repositories import Heard, brought, folder, missed
from worker.errors import WeightsUnavailable
from worker.local.engine.store import smollm2_gguf
from worker.location import Located, locate
from worker.names import ModelName
from worker.references import from_repository, from_text
from worker.registration import Registration
from worker.sources import chain
from worker.sources.base import Offer
from worker.sources.registry import Registry
from worker.store import Store

pytestmark = pytest.mark.ollama
NO_OLLAMA = "set OLLAMA_BIN to a real ollama to let it pull"
Serve = Callable[..., RangeServer]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the registry has: the small chat model, and one of a few kilobytes."""
    place = tmp_path_factory.mktemp("registry")
    store = Store(place / "models")
    Registration(smollm2_gguf()).into(store, ModelName.parse("smol:135m"))
    tiny = folder(place / "files", "T-Q8_0.gguf") / "T-Q8_0.gguf"
    Registration(tiny, template="{{ .Prompt }}").into(store, ModelName.parse("tiny"))
    return store.root


@pytest.fixture
def serve(shelf: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(faults: Any = None) -> RangeServer:
            return stack.enter_context(RangeServer(FakeRegistry(shelf).app, faults=faults))

        yield start


@pytest.fixture
def ollama(tmp_path: Path) -> Iterator[ApiServer]:
    if not os.environ.get("OLLAMA_BIN"):
        pytest.skip(NO_OLLAMA)
    with ApiServer("ollama", tmp_path / "home") as server:
        yield server


def registry(ollama: ApiServer, ready: Callable[[], None] = lambda: None) -> Registry:
    return Registry(ollama.url, ready, limit_s=60.0)


def test_ollama_pulls_what_is_wanted(serve: Serve, ollama: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.sources.registry.PROGRESS_INTERVAL_S", 0.0)
    server = serve()
    wanted = from_text(f"{server.url}/library/smol:135m")
    store = Store(ollama.models)
    heard = Heard()
    waited: list[int] = []
    placed = chain.place(wanted, [registry(ollama, lambda: waited.append(1))], store, heard.listener)
    assert placed.source == "registry"
    assert waited == [1]
    found = locate([store.root], wanted)
    assert isinstance(found, Located)
    assert placed.name == found.name == f"{server.url.removeprefix('http://')}/library/smol:135m"
    assert {source for source, _ in heard.progress} == {"registry"}
    assert max(progress.total_bytes for _, progress in heard.progress) >= smollm2_gguf().stat().st_size
    body = {"model": placed.name, "prompt": "Hi", "raw": True, "stream": False, "options": {"num_predict": 1}}
    assert ollama.post("/api/generate", body).json()["done"] is True


def test_the_size_is_known_before_the_pull(serve: Serve, ollama: ApiServer, shelf: Path) -> None:
    server = serve()
    offer = registry(ollama).offer(from_text(f"{server.url}/library/tiny"))
    assert isinstance(offer, Offer)
    tiny = folder(shelf.parent / "again", "T-Q8_0.gguf") / "T-Q8_0.gguf"
    assert tiny.stat().st_size < (offer.moved_bytes or 0) < tiny.stat().st_size + 1000


def test_a_disk_that_is_too_small_is_found_out_before(
    serve: Serve, ollama: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.store.storage.place", lambda path: type("Place", (), {"free_bytes": 100, "path": path}))
    server = serve()
    with pytest.raises(WeightsUnavailable, match=r"registry: .* has 0\.00 GB free, 0\.10 GB are needed"):
        chain.place(from_text(f"{server.url}/library/smol:135m"), [registry(ollama)], Store(ollama.models))
    assert not [request for request in server.requests if "/blobs/" in request.path]


def test_what_the_registry_does_not_have_is_said(serve: Serve, ollama: ApiServer) -> None:
    wanted = from_text(f"{serve().url}/library/nothing")
    with pytest.raises(WeightsUnavailable, match="registry: pull model manifest: file does not exist"):
        chain.place(wanted, [registry(ollama)], Store(ollama.models))


def test_a_pull_that_was_disturbed_ends_whole(serve: Serve, ollama: ApiServer) -> None:
    left = [Fault(reset_at=2000), Fault(status=503), Fault(cut_at=100)]

    def faults(request: Request) -> Fault | None:
        return left.pop() if left and request.span else None

    wanted = from_text(f"{serve(faults).url}/library/tiny")
    made = brought(registry(ollama), wanted, Store(ollama.models))
    assert made.lacks(ollama.models) == []
    assert left == []


def test_wrong_bytes_are_not_taken(serve: Serve, ollama: ApiServer) -> None:
    wanted = from_text(f"{serve(lambda request: Fault(flip_at=9) if request.span else None).url}/library/tiny")
    with pytest.raises(WeightsUnavailable, match="registry: digest mismatch"):
        chain.place(wanted, [registry(ollama)], Store(ollama.models))
    assert not isinstance(locate([ollama.models], wanted), Located)


def test_a_server_with_another_store_is_noticed(serve: Serve, ollama: ApiServer, tmp_path: Path) -> None:
    wanted = from_text(f"{serve().url}/library/tiny")
    with pytest.raises(WeightsUnavailable, match="registry: the server pulled it into another store"):
        chain.place(wanted, [registry(ollama)], Store(tmp_path / "other"))


@pytest.mark.parametrize("text", ["/data/m.gguf", "s3://bucket/m.gguf"])
def test_places_are_not_in_a_registry(text: str) -> None:
    words = "it was not asked for by a registry's name"
    source = Registry("http://127.0.0.1:9", lambda: None, 1.0)
    assert missed(source, from_text(text)) == words
    for repository in ("org/repo", "org/repo:Q4_0"):
        assert missed(source, from_repository(repository)) == words
