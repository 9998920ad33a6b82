"""Models brought from every kind of source the configuration can name, and what is told on the way."""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.hub_server import FakeHub
from tests.fakes.range_server import Answer, RangeServer, Request
from tests.fakes.registry_server import FakeRegistry
from tests.fakes.repositories import cache, content, folder
from tests.fakes.s3_server import ACCESS_KEY, SECRET_KEY, FakeS3
from worker import bringer, folders
from worker.bringer import Bringer
from worker.config import load
from worker.errors import ServerExited, ServerTimeout, WeightsUnavailable
from worker.location import Located, locate
from worker.outset import outset
from worker.registration import Registration
from worker.sources.chain import Placed
from worker.store import Store

if TYPE_CHECKING:
    from tests.conftest import Written

REPO = "org/Tiny-GGUF"
FILE = "Tiny-Q8_0.gguf"
HUB_NAME = "hf/org-tiny-gguf:q8_0"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return content(FILE, tmp_path_factory.mktemp("scratch"))


@pytest.fixture
def hub(gguf: bytes) -> Iterator[RangeServer]:
    with RangeServer(FakeHub({REPO: {FILE: gguf}}, gated=frozenset({REPO})).app) as server:
        yield server


@pytest.fixture
def bucket(gguf: bytes) -> Iterator[RangeServer]:
    with RangeServer(FakeS3({"models": {f"mirror/{REPO}/{FILE}": gguf}}, region="eu-1").app) as server:
        yield server


Bring = Callable[..., Placed]


@pytest.fixture
def bring(tmp_path: Path, written: Written, monkeypatch: pytest.MonkeyPatch) -> Bring:
    """Bring the resident model of an environment into the store at `tmp_path/own`."""
    for module in (folders, bringer):
        monkeypatch.setattr(module, "BAKED", tmp_path / "baked")

    def run(
        *, ready: Callable[[], None] = lambda: None, check: Callable[[], None] = lambda: None, **environ: str
    ) -> Placed:
        given = {
            "RUNPOD_WEBHOOK_GET_JOB": "http://x/$ID",
            "HOME": str(tmp_path / "home"),
            "WORKER_VOLUME": str(tmp_path / "volume"),
            "RUNPOD_MODEL_CACHE_DIR": str(tmp_path / "cache"),
            "OLLAMA_MODELS": str(tmp_path / "own"),
            "HF_ENDPOINT": NOWHERE,
            "OLLAMA_HOST": NOWHERE,
            **environ,
        }
        start = outset(given)
        return Bringer(start, load(given), written.writer, ready=ready, check=check).bring(start.wanted)

    return run


def keys(bucket: RangeServer) -> dict[str, str]:
    return {
        "WORKER_OBJECT_STORE": "s3://models/mirror",
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "eu-1",
    }


def in_store(models: Path, tmp_path: Path) -> Path:
    """Put the model that the repository has into a store."""
    files = folder(tmp_path / "files", FILE)
    Registration(files / FILE).into(Store(models), outset({"HF_MODEL": f"{REPO}:Q8_0"}).wanted.name)
    return models


@pytest.fixture(autouse=True)
def _a_hub_that_is_down_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.suppress(ImportError):
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)


@pytest.mark.parametrize("source", ["local", "volume", "baked", "model_store", "object_store", "hub"])
def test_each_source_is_found_by_its_own_settings(
    source: str, bring: Bring, written: Written, tmp_path: Path, hub: RangeServer, bucket: RangeServer
) -> None:
    pytest.importorskip("huggingface_hub")
    environ = {"HF_MODEL": f"{REPO}:Q8_0"}
    if source == "local":
        environ = {"OLLAMA_MODEL": str(folder(tmp_path / "files", FILE) / FILE)}
    elif source in {"volume", "baked"}:
        in_store(tmp_path / "baked" if source == "baked" else tmp_path / "volume" / "ollama" / "models", tmp_path)
    elif source == "model_store":
        cache(tmp_path / "cache", REPO, FILE)
    elif source == "object_store":
        environ |= keys(bucket)
    else:
        environ |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}
    placed = bring(**environ)
    assert placed.source == ("local" if source == "baked" else source)
    assert placed.name == ("local/tiny:q8_0" if source == "local" else HUB_NAME)
    blob = placed.manifest.layer("model")
    assert blob is not None
    assert blob.path(tmp_path / "own").read_bytes() == content(FILE, tmp_path)
    told = written.one("weights.placed")
    assert (told["model"], told["source"], told["store"]) == (placed.name, placed.source, str(tmp_path / "own"))
    assert all(record["source"] != placed.source for record in written.all("source.passed_over") if source != "baked")


def test_the_registry_is_asked_by_the_server_once_it_answers(bring: Bring, tmp_path: Path) -> None:
    served = in_store(tmp_path / "registry", tmp_path)
    steps: list[str] = []
    fake = FakeRegistry(served)

    def app(request: Request) -> Answer:
        steps.append(request.path)
        if request.path != "/api/pull":
            return fake.app(request)
        shutil.copytree(served, tmp_path / "own", dirs_exist_ok=True)
        return Answer(body=b'{"status":"success"}\n')

    with RangeServer(app) as server:
        server.app = app
        # The handler of the fake answers GET only; a pull is a POST.
        server._http.RequestHandlerClass.do_POST = server._http.RequestHandlerClass.do_GET
        name = f"{server.url}/hf/org-tiny-gguf:q8_0"
        shutil.move(served / "manifests" / "registry.ollama.ai", served / "manifests" / server.url.partition("//")[2])
        placed = bring(OLLAMA_MODEL=name, OLLAMA_HOST=server.url, ready=lambda: steps.append("ready"))
    assert placed.source == "registry"
    assert steps[-2:] == ["ready", "/api/pull"]


def test_what_is_near_is_taken_first_unless_the_order_says_otherwise(
    bring: Bring, written: Written, tmp_path: Path, bucket: RangeServer
) -> None:
    in_store(tmp_path / "volume" / "ollama" / "models", tmp_path)
    both = {"HF_MODEL": f"{REPO}:Q8_0", **keys(bucket)}
    assert bring(**both).source == "volume"
    assert bucket.requests == []
    shutil.rmtree(tmp_path / "own")
    assert bring(**both, WORKER_SOURCES="hub, object_store volume").source == "object_store"
    # The first of the order was asked, and said why not.
    assert written.all("source.passed_over")[-1]["source"] == "hub"


def test_only_the_sources_that_are_named_are_asked(bring: Bring, written: Written, tmp_path: Path) -> None:
    in_store(tmp_path / "volume" / "ollama" / "models", tmp_path)
    with pytest.raises(WeightsUnavailable) as caught:
        bring(HF_MODEL=f"{REPO}:Q8_0", WORKER_SOURCES="local model_store")
    assert [record["source"] for record in written.all("source.passed_over")] == ["local", "model_store"]
    _, asked = written.all("source.passed_over")
    assert caught.value.message.endswith(f"'{REPO}:Q8_0': {asked['source']}: {asked['reason']}")
    assert "HF_TOKEN" in caught.value.hint


def test_progress_is_told_while_it_comes(
    bring: Bring, written: Written, bucket: RangeServer, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.progress.REPORT_INTERVAL_S", 0.0)
    bring(HF_MODEL=f"{REPO}:Q8_0", **keys(bucket))
    told = written.all("weights.progressed")
    assert {record["source"] for record in told} == {"object_store"}
    assert told[-1]["total_bytes"] == len(gguf) >= told[0]["done_bytes"]


def test_a_transfer_ends_when_the_server_has_gone_and_leaves_no_model(
    bring: Bring, bucket: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.progress.REPORT_INTERVAL_S", 0.0)
    crashes: list[object] = []
    monkeypatch.setattr(threading, "excepthook", crashes.append)

    def gone() -> None:
        # Noticed by a thread that brings a part of the file, as it usually is.
        if threading.current_thread().name.startswith("fetch-"):
            raise ServerExited(9, ["killed"])

    with pytest.raises(ServerExited, match="exited with code 9: killed"):
        bring(HF_MODEL=f"{REPO}:Q8_0", check=gone, **keys(bucket))
    assert crashes == []
    assert not isinstance(locate([tmp_path / "own"], outset({"HF_MODEL": f"{REPO}:Q8_0"}).wanted), Located)
    # The next worker need not wait for the right to bring it.
    assert [path.name for path in (tmp_path / "own" / "leases").iterdir()] == []


def test_a_model_on_another_disk_is_not_copied(bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.link", elsewhere)
    monkeypatch.setattr("worker.store._clone", elsewhere)
    place = folder(tmp_path / "files", FILE) / FILE
    blob = bring(OLLAMA_MODEL=str(place)).manifest.layer("model")
    assert blob is not None
    assert blob.path(tmp_path / "own").readlink() == place


def test_a_server_that_never_answers_is_the_reason_and_no_miss(bring: Bring) -> None:
    def silent() -> None:
        raise ServerTimeout("server start", 5.0)

    with pytest.raises(ServerTimeout):
        bring(OLLAMA_MODEL=f"{NOWHERE}/ns/tiny:1b", WORKER_SOURCES="registry", ready=silent)


def test_a_store_that_cannot_be_written_is_named(bring: Bring, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a file where the store should be")
    with pytest.raises(WeightsUnavailable, match=f"{tmp_path}/own cannot be used: "):
        bring(OLLAMA_MODEL=str(folder(tmp_path / "files", FILE) / FILE))
