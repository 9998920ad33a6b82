from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import tiny_gguf
from tests.fakes.api_server import ApiServer
from tests.fakes.repositories import cache
from worker import gguf_file, manifest
from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.names import ModelName
from worker.references import from_repository, from_text
from worker.registration import Registration
from worker.sources import chain
from worker.sources.local import Local
from worker.sources.model_store import ModelStore
from worker.store import Store

NO_OLLAMA = "set OLLAMA_BIN to a real ollama to let it serve"
REAL = pytest.mark.skipif(not os.environ.get("OLLAMA_BIN"), reason=NO_OLLAMA)
KINDS = ["engine", pytest.param("ollama", marks=[pytest.mark.ollama, REAL])]
Start = Callable[..., ApiServer]


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Start a server over the store that was filled."""
    servers: list[ApiServer] = []

    def run(**settings: str) -> ApiServer:
        servers.append(ApiServer(request.param, tmp_path / "home", **settings))
        return servers[-1].__enter__()

    yield run
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home" / "models")


def answer(server: ApiServer, model: str) -> str:
    body = {
        "model": model,
        "stream": False,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "options": {"temperature": 0, "num_predict": 12},
    }
    reply = server.post("/api/chat", body)
    assert reply.status_code == 200, (reply.text, server.output[-2000:])
    return str(reply.json()["message"]["content"])


def same_as_original(server: ApiServer, model: str) -> bool:
    """Ask the same of the file the test began with, registered by other means."""
    register_gguf(server.models, "original", smollm2_gguf())
    said = answer(server, model)
    return len(said.split()) > 2 and said == answer(server, "original")


def test_a_gguf_is_served_as_it_lies(start: Start, store: Store, tmp_path: Path) -> None:
    place = tmp_path / "Repo" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    place.parent.mkdir()
    os.link(smollm2_gguf(), place)
    placed = chain.place(from_text(str(place.parent)), [Local()], store)
    server = start()
    assert same_as_original(server, placed.name)
    (listed,) = [m for m in server.get("/api/tags").json()["models"] if m["name"] == "local/repo:q4_1"]
    assert listed["size"] == placed.manifest.size_bytes
    shown = server.post("/api/show", {"model": placed.name}).json()
    assert (shown["details"]["family"], shown["details"]["parameter_size"]) == ("llama", "134.52M")
    assert shown["details"]["quantization_level"] == "Q4_1"


def test_a_cached_repository_is_served(start: Start, store: Store, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    folder = cache(hub, "org/Smol-GGUF", "mmproj-F16.gguf")
    (snapshot,) = (folder / "snapshots").iterdir()
    os.link(smollm2_gguf(), snapshot / "Smol-Q4_1.gguf")
    wanted = replace(from_repository("org/Smol-GGUF"), skip_projector=True)
    placed = chain.place(wanted, [ModelStore(hub)], store)
    assert placed.name == "hf/org-smol-gguf:q4_1"
    server = start()
    assert same_as_original(server, placed.name)
    # Left out of the model itself: nobody is told that it can see.
    shown = server.post("/api/show", {"model": placed.name}).json()
    assert "vision" not in shown["capabilities"]
    assert shown.get("projector_info") in (None, {})


def test_parts_are_served_as_one(start: Start, store: Store, tmp_path: Path) -> None:
    parts = split(smollm2_gguf(), tmp_path / "parts", "smol-Q4_1", 3)
    placed = chain.place(from_text(str(parts[1])), [Local()], store)
    assert placed.name == "local/smol:q4_1"
    assert same_as_original(start(), placed.name)


def split(source: Path, folder: Path, stem: str, count: int) -> list[Path]:
    """Write a model in parts, by hand: metadata in the first, tensors in turn."""
    head, raw = gguf_file.read(source), source.read_bytes()
    folder.mkdir()
    paths = []
    for number in range(count):
        tensors = head.tensors[number::count]
        notes = b"".join(
            tiny_gguf._text(key) + tiny_gguf._typed(value)
            for key, value in (("split.no", number), ("split.count", count), ("split.tensors.count", len(head.tensors)))
        )
        pairs = b"".join(head.pairs.values()) if number == 0 else b""
        infos, data = b"", b""
        for tensor in tensors:
            begin = head.data_start + tensor.offset
            shape = b"".join(side.to_bytes(8, "little") for side in tensor.shape)
            infos += tiny_gguf._text(tensor.name) + len(tensor.shape).to_bytes(4, "little") + shape
            infos += tensor.type.to_bytes(4, "little") + len(data).to_bytes(8, "little")
            data += tiny_gguf._padded(raw[begin : begin + (tensor.size_bytes or 0)])
        pair_count = (len(head.pairs) if number == 0 else 0) + 3
        begin_ = (
            b"GGUF" + (3).to_bytes(4, "little") + len(tensors).to_bytes(8, "little") + pair_count.to_bytes(8, "little")
        )
        paths.append(folder / f"{stem}-{number + 1:05}-of-{count:05}.gguf")
        paths[-1].write_bytes(tiny_gguf._padded(begin_ + pairs + notes + infos) + data)
    return paths


@pytest.mark.ollama
@REAL
def test_another_template_takes_effect_without_another_copy(tmp_path: Path) -> None:
    # A GGUF's own template may win over one in Ollama's form unless the server is told otherwise.
    with ApiServer("ollama", tmp_path / "home", OLLAMA_GO_TEMPLATE="1") as server:
        store = Store(server.models)
        plain = from_text(str(smollm2_gguf()))
        first = answer(server, chain.place(plain, [Local()], store).name)
        blobs = sorted((store.root / "blobs").iterdir())
        wanted = replace(plain, template="{{ .Prompt }} One two three four five six seven")
        placed = chain.place(wanted, [], store)
        assert server.post("/api/show", {"model": placed.name}).json()["template"] == wanted.template
        assert answer(server, placed.name) != first
        # A template and a config were added, a few hundred bytes.
        assert sum(path.stat().st_size for path in set((store.root / "blobs").iterdir()) - set(blobs)) < 1000


@pytest.mark.ollama
@REAL
def test_registering_takes_no_room_and_creating_takes_the_model_again(tmp_path: Path) -> None:
    """`ollama create` uploads the file and rewrites it: the peak is what a disk has to have."""
    source = tmp_path / "smol.gguf"
    os.link(smollm2_gguf(), source)
    size = source.stat().st_size
    with ApiServer("ollama", tmp_path / "home") as server:
        created = peak(server.models, lambda: create(server, source))
    with ApiServer("ollama", tmp_path / "other") as server:
        registered = peak(
            server.models, lambda: Registration(source).into(Store(server.models), ModelName.parse("registered"))
        )
        assert same_as_original(server, "registered")
    assert registered / size < 0.01
    assert created / size > 1.9


def create(server: ApiServer, source: Path) -> None:
    from worker import known_digest  # noqa: PLC0415 - only here

    digest = f"sha256:{known_digest.computed(source)}"
    with source.open("rb") as file:
        assert server.post(f"/api/blobs/{digest}", data=file).status_code == 201
    reply = server.post("/api/create", {"model": "created", "files": {"smol.gguf": digest}, "stream": False})
    assert reply.json() == {"status": "success"}


def peak(folder: Path, step: Callable[[], Any]) -> int:
    """Return the most bytes `folder` took beyond hard links while `step` ran."""
    over = threading.Event()
    most = [0]

    def watch() -> None:
        while not over.is_set():
            total = 0
            for path in folder.rglob("*"):
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                total += stat.st_blocks * 512 if path.is_file() and stat.st_nlink == 1 else 0
            most[0] = max(most[0], total)
            over.wait(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        step()
    finally:
        over.set()
        thread.join()
    return most[0]


def test_a_model_on_another_disk_is_served_through_a_link(
    start: Start, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_disk(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    place = tmp_path / "other disk" / "Smol-Q4_1.gguf"
    place.parent.mkdir()
    os.link(smollm2_gguf(), place)
    with monkeypatch.context() as patch:
        patch.setattr("worker.store.os.link", another_disk)
        patch.setattr("worker.store.fcntl.ioctl", another_disk)
        placed = chain.place(from_text(str(place)), [Local()], replace(store, symlinks=True))
    assert placed.manifest.layers[1].path(store.root).is_symlink()
    assert same_as_original(start(), placed.name)


def test_a_store_that_cannot_be_written_is_served_in_place(start: Start, store: Store) -> None:
    placed = chain.place(from_text(str(smollm2_gguf())), [Local()], store)
    register_gguf(store.root, "original", smollm2_gguf())
    assert manifest.read(store.root, placed.manifest.name) == placed.manifest
    folders = [store.root, *(path for path in store.root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        server = start()
        assert answer(server, placed.name) == answer(server, "original")
    finally:
        for folder in folders:
            folder.chmod(0o755)
