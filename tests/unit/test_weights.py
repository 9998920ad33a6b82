"""Weights on their way to the server: found, brought, landed or read in place, and said to be damaged or silent."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.repositories import folder
from worker import bringer, folders, storage, weights
from worker.bringer import Bringer
from worker.config import Config, load
from worker.errors import WeightsUnavailable
from worker.landing import BEFORE
from worker.location import Located
from worker.manifest import CONFIG_TYPE, LAYER_PREFIX, Manifest, path_of
from worker.names import ModelName
from worker.outset import outset
from worker.registration import MODEL_TYPE, PROJECTOR_TYPE
from worker.storage import Place
from worker.store import Store
from worker.view import View
from worker.weights import Weights

if TYPE_CHECKING:
    from tests.conftest import Written

NAME = "tiny:1b"
WEIGHTS = os.urandom(70_001)
PROJECTOR = os.urandom(9_003)
LIMIT_S = 60.0


class Worker:
    """One worker's start with its folders, as far as its weights go; capitals are its environment."""

    def __init__(self, root: Path, written: Written, **settings: str) -> None:
        self.home = root / "home"
        self.environ = {
            "RUNPOD_WEBHOOK_GET_JOB": "http://x/$ID",
            "HOME": str(self.home),
            "WORKER_VOLUME": str(root / "volume"),
            "OLLAMA_MODELS": str(root / "own"),
            "OLLAMA_MODEL": NAME,
            **settings,
        }
        self.start = outset(self.environ)
        self.view = View(self.home / "store", self.start.stores[0])
        self.shown = Path(self.view.open()["OLLAMA_MODELS"])
        self.weights = Weights(self.start, self.view, written.writer)
        self.written = written
        self.brought = 0

    @property
    def config(self) -> Config:
        return load(self.environ)

    @property
    def landed(self) -> Path:
        return self.home / ".ollama" / "landed"

    def bringer(self) -> Bringer:
        self.brought += 1
        return Bringer(self.start, self.config, self.written.writer, ready=lambda: None, check=lambda: None)

    def make_ready(self) -> Located:
        return self.weights.make_ready(self.weights.find(), self.config, self.bringer)

    def reads(self, sha256: str) -> Path:
        """Return the file that the server reads for a blob."""
        return (self.shown / "blobs" / f"sha256-{sha256}").resolve()


MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(tmp_path: Path, written: Written, monkeypatch: pytest.MonkeyPatch) -> MakeWorker:
    monkeypatch.setattr(weights, "SMALL_BYTES", 1 << 12)
    monkeypatch.setattr(weights, "SHARED_MEMORY", tmp_path / "shm")
    for module in (folders, bringer):
        monkeypatch.setattr(module, "BAKED", tmp_path / "baked")
    return lambda **settings: Worker(tmp_path, written, **settings)


@pytest.fixture
def worker(make_worker: MakeWorker) -> Worker:
    return make_worker()


@pytest.fixture
def on_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """A model in the volume's store; what lies below a folder called "volume" counts as distant and not cached."""
    real = storage.place

    def place(path: Path) -> Place:
        found = real(path)
        return Place(path, "fuse", found.free_bytes) if "volume" in path.parts else found

    monkeypatch.setattr(storage, "place", place)
    monkeypatch.setattr(storage, "cached_share", lambda _: 0.0)
    # Nothing here is on that disk, as nothing on a volume is on the container's.
    monkeypatch.setattr(weights, "ROOT", Path("/proc"))
    return model(tmp_path / "volume" / "ollama" / "models", projector=PROJECTOR)


def model(root: Path, *, projector: bytes = b"") -> Manifest:
    store = Store(root)
    layers = [store.put(b'{"model_format":"gguf"}', CONFIG_TYPE), store.put(WEIGHTS, MODEL_TYPE)]
    layers += [store.put(projector, PROJECTOR_TYPE)] if projector else []
    layers.append(store.put(b"{{ .Prompt }}", f"{LAYER_PREFIX}template"))
    made = Manifest(ModelName.parse(NAME), tuple(layers))
    store.publish(made)
    return made


def hexes(made: Manifest) -> tuple[str, str]:
    return tuple(layer.hex for kind in ("model", "projector") if (layer := made.layer(kind)))  # type: ignore[return-value]


def entries(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def test_a_model_in_the_store_on_the_containers_disk_needs_nothing(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "ROOT", tmp_path)
    made = model(tmp_path / "own")
    found = worker.weights.find()
    assert found == Located(tmp_path / "own", made)
    assert worker.weights.near(found)
    assert worker.make_ready() == found
    assert worker.reads(hexes(made)[0]).parent == tmp_path / "own" / "blobs"
    assert {record["event"] for record in worker.written.records} == {"weights.requested", "weights.placed"}
    placed = worker.written.all("weights.placed")[0]
    assert (placed["model"], placed["source"], placed["store"]) == (NAME, "local", str(tmp_path / "own"))
    # Not near: in another store, on another disk, gone.
    assert not worker.weights.near(Located(tmp_path / "baked", model(tmp_path / "baked")))
    monkeypatch.setattr(weights, "ROOT", Path("/proc"))
    assert not worker.weights.near(found)
    monkeypatch.setattr(weights, "ROOT", tmp_path)
    worker.reads(hexes(made)[0]).unlink()
    assert not worker.weights.near(found)


def test_another_store_is_shown_as_it_is(worker: Worker, tmp_path: Path) -> None:
    made = model(tmp_path / "baked")
    assert worker.make_ready() == Located(tmp_path / "baked", made)
    worker.weights.loaded(worker.config)
    assert worker.shown.resolve() == tmp_path / "baked"
    assert worker.brought == 0
    assert worker.written.all("weights.noted") == []


@pytest.mark.parametrize("setting", ["WORKER_PULL_ON_DEMAND", "WORKER_ALLOW_MODEL_ADMIN", "WORKER_MODELS"])
def test_where_the_server_is_to_write_the_model_is_made_one_of_its_own_store(
    setting: str, make_worker: MakeWorker, tmp_path: Path
) -> None:
    worker = make_worker(**{setting: f"{NAME},other:1b" if setting == "WORKER_MODELS" else "1"})
    made = model(tmp_path / "baked")
    assert worker.make_ready() == Located(tmp_path / "own", made)
    worker.weights.loaded(worker.config)
    assert worker.shown.resolve() == tmp_path / "own"
    # Not a second copy of the bytes.
    assert worker.reads(hexes(made)[0]).samefile(tmp_path / "baked" / "blobs" / f"sha256-{hexes(made)[0]}")
    assert [record["source"] for record in worker.written.all("weights.placed")] == ["local", "local"]


def test_a_server_that_can_be_shown_one_store_only_gets_the_model_there(
    make_worker: MakeWorker, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("no folder, so no link")
    worker = make_worker()
    made = model(tmp_path / "baked")
    assert worker.make_ready() == Located(tmp_path / "own", made)
    assert worker.shown == tmp_path / "own"
    assert worker.written.one("weights.noted")["text"] == (
        f"{NAME} is in {tmp_path}/baked, but the server can only be shown {tmp_path}/own"
    )


def test_a_model_that_is_nowhere_is_brought(make_worker: MakeWorker, tmp_path: Path) -> None:
    place = folder(tmp_path / "files", "Tiny-Q8_0.gguf") / "Tiny-Q8_0.gguf"
    worker = make_worker(OLLAMA_MODEL=str(place))
    found = worker.make_ready()
    assert (found.name, found.models, worker.brought) == ("local/tiny:q8_0", tmp_path / "own", 1)
    assert worker.written.all("source.passed_over")[0]["reason"] == f"{tmp_path}/own: the model is not in the store"
    blob = found.manifest.layer("model")
    assert blob is not None
    assert worker.reads(blob.hex).read_bytes() == place.read_bytes()


def test_a_distant_model_is_landed_with_its_projector(worker: Worker, on_volume: Manifest) -> None:
    found = worker.make_ready()
    weights_hex, projector_hex = hexes(on_volume)
    assert entries(worker.landed) == sorted(f"sha256-{sha256}" for sha256 in (weights_hex, projector_hex))
    for sha256, content in ((weights_hex, WEIGHTS), (projector_hex, PROJECTOR)):
        assert worker.reads(sha256).parent == worker.landed
        assert worker.reads(sha256).read_bytes() == content
    # Small files stay where they are.
    small = [layer for layer in found.manifest.layers if layer.size_bytes < weights.SMALL_BYTES]
    assert {worker.reads(layer.hex).parent for layer in small} == {worker.start.stores[2] / "blobs"}
    finished = worker.written.all("landing.finished")
    assert [(record["size_bytes"], bool(record["method"])) for record in finished] == [(70_001, True), (9_003, True)]
    assert finished[0]["reason"] == f"fuse is distant, {worker.landed} has room"
    started = worker.written.all("landing.started")
    assert [record["path"][-64:] for record in started] == [weights_hex, projector_hex]


def test_what_was_landed_and_verified_once_is_neither_copied_nor_verified_again(
    worker: Worker, on_volume: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.make_ready()
    # Computing a digest would fail from here on.
    monkeypatch.setattr("worker.known_digest.computed", lambda *_: pytest.fail("its digest is known"))
    worker.make_ready()
    assert [record["method"] for record in worker.written.all("landing.finished")][2:] == [BEFORE, BEFORE]
    assert worker.reads(hexes(on_volume)[0]).parent == worker.landed


def test_where_landing_is_off_or_elsewhere(make_worker: MakeWorker, on_volume: Manifest, tmp_path: Path) -> None:
    sha256 = hexes(on_volume)[0]
    off = make_worker(WORKER_LANDING="0")
    off.make_ready()
    assert off.reads(sha256).is_relative_to(tmp_path / "volume")
    assert off.written.all("landing.started") == []
    elsewhere = make_worker(WORKER_LANDING_DIR=str(tmp_path / "elsewhere"))
    elsewhere.make_ready()
    assert elsewhere.reads(sha256).parent == tmp_path / "elsewhere"


@pytest.mark.parametrize("damaged", [0, 1], ids=["weights", "projector"])
def test_a_damaged_file_is_named_and_nothing_of_it_is_kept(damaged: int, worker: Worker, on_volume: Manifest) -> None:
    sha256 = hexes(on_volume)[damaged]
    blob = worker.start.stores[2] / "blobs" / f"sha256-{sha256}"
    content = bytearray(blob.read_bytes())
    content[5000] ^= 1
    blob.write_bytes(content)
    with pytest.raises(WeightsUnavailable, match=rf"is damaged: {blob}: the bytes have sha256") as caught:
        worker.make_ready()
    assert caught.value.hint.startswith("Remove that file")
    assert f"sha256-{sha256}" not in entries(worker.landed)


def test_without_room_the_model_is_read_in_place_and_the_reason_told(
    worker: Worker, on_volume: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = storage.place
    monkeypatch.setattr(storage, "place", lambda path: Place(path, real(path).filesystem, 1000))
    worker.make_ready()
    assert worker.reads(hexes(on_volume)[0]).is_relative_to(worker.start.stores[2])
    finished = worker.written.all("landing.finished")[0]
    assert (finished["method"], finished["size_bytes"]) == ("", 0)
    assert f"{worker.landed} has 0.0 GB free" in finished["reason"]
    assert finished["path"].endswith(hexes(on_volume)[0])
    assert entries(worker.landed) == []


def test_copies_of_other_models_are_cleared_away(worker: Worker, on_volume: Manifest, tmp_path: Path) -> None:
    for place in (worker.landed, tmp_path / "shm"):
        place.mkdir(parents=True)
        for name in ("sha256-other", ".sha256-killed.partial", "notes.txt"):
            (place / name).write_text("x")
    worker.make_ready()
    assert entries(worker.landed) == sorted(["notes.txt", *(f"sha256-{sha256}" for sha256 in hexes(on_volume))])
    assert entries(tmp_path / "shm") == ["notes.txt"]


def test_landed_files_that_cannot_be_shown_are_passed_over_for_the_store_itself(
    worker: Worker, on_volume: Manifest
) -> None:
    (worker.home / "store.landed").write_text("a file where the folder should be")
    found = worker.make_ready()
    assert worker.shown.resolve() == found.models
    assert worker.reads(hexes(on_volume)[0]).read_bytes() == WEIGHTS
    assert "the landed files cannot be shown to the server: " in worker.written.one("weights.noted")["text"]


def test_a_link_that_cannot_be_changed_any_more_is_told_and_ends_nothing(
    make_worker: MakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(WORKER_PULL_ON_DEMAND="1")
    made = model(tmp_path / "own")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "symlink_to", full)
    assert worker.make_ready() == Located(tmp_path / "own", made)
    worker.weights.loaded(worker.config)
    assert [record["text"] for record in worker.written.all("weights.noted")] == [
        "the server's store cannot be changed: No space left on device",
        f"the server does not see {tmp_path}/own: No space left on device",
    ]


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store whose manifest never answers: reading it waits for a writer that does not come."""
    monkeypatch.setattr(weights, "ANSWER_LIMIT_S", 0.3)
    manifest = path_of(tmp_path / "own", ModelName.parse(NAME))
    manifest.parent.mkdir(parents=True)
    os.mkfifo(manifest)
    yield tmp_path / "own"
    while hanging := [thread for thread in threading.enumerate() if thread.name == "bounded"]:
        # Opening it for both never waits itself.
        os.close(os.open(manifest, os.O_RDWR))
        hanging[0].join(0.05)


def test_a_store_that_does_not_answer_ends_the_boot_within_its_limit(worker: Worker, silent: Path) -> None:
    with pytest.raises(WeightsUnavailable, match=rf"the store cannot be read: {silent}: no answer within 0\.3 s"):
        worker.make_ready()
    assert worker.brought == 0
    assert worker.written.one("source.passed_over")["reason"] == f"{silent}: no answer within 0.3 s"


def test_a_store_that_does_not_answer_is_passed_over_when_another_one_has_the_model(
    worker: Worker, silent: Path, tmp_path: Path
) -> None:
    made = model(tmp_path / "baked")
    assert worker.weights.find() == Located(tmp_path / "baked", made)
    assert silent.exists()


@pytest.mark.parametrize("step", ["worker.storage.cached_share", "worker.known_digest.remembered"])
def test_a_volume_that_falls_silent_is_left_to_the_server_within_the_limit(
    step: str, worker: Worker, on_volume: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(weights, "ANSWER_LIMIT_S", 0.3)
    monkeypatch.setattr(step, lambda *_: over.wait(LIMIT_S) or "")
    try:
        worker.make_ready()
    finally:
        over.set()
    assert "no answer within 0.3 s" in worker.written.all("landing.finished")[0]["reason"]
    assert worker.reads(hexes(on_volume)[0]).is_relative_to(worker.start.stores[2])
