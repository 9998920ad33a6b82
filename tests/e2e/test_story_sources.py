"""One worker, its model from wherever it is: a path, a folder, a cache, a bucket, the Hub; and models on demand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, Marked, StartWorker
from tests.fakes.hub_server import FakeHub
from tests.fakes.range_server import RangeServer
from tests.fakes.s3_server import ACCESS_KEY, SECRET_KEY, FakeS3
from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.local.process import ROOT
from worker.local.queue import LocalQueue

LIMIT_S = 90.0
FILE = "SmolLM2-135M-Instruct-Q8_0.gguf"
REPO = "Unsloth/SmolLM2-135M-Instruct-GGUF"
HUB_NAME = "hf/unsloth-smollm2-135m-instruct-gguf:q8_0"
ASKED = {"prompt": "Hi", "options": {"num_predict": 2, "temperature": 0}}
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


@pytest.fixture(scope="module")
def gguf() -> bytes:
    return smollm2_gguf().read_bytes()


@pytest.fixture
def bucket(gguf: bytes) -> Iterator[RangeServer]:
    with RangeServer(FakeS3({"models": {f"{REPO}/{FILE}": gguf, "one.gguf": gguf}}).app) as server:
        yield server


@pytest.fixture
def hub(gguf: bytes) -> Iterator[RangeServer]:
    with RangeServer(FakeHub({REPO: {FILE: gguf, "README.md": b"# A model"}}).app) as server:
        yield server


def linked(folder: Path, name: str = FILE) -> Path:
    """Put the model into `folder` under a name of its own, without copying it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(smollm2_gguf())
    return folder / name


def placed_of(worker: Any) -> tuple[str, str]:
    placed = worker.wait_event("weights.placed", LIMIT_S)
    return placed["source"], placed["model"]


Given = Callable[[Path], dict[str, str]]


@pytest.mark.parametrize(
    ("given", "source", "name"),
    [
        (lambda home: {"OLLAMA_MODEL": str(linked(home / "files"))}, "local", "local/smollm2-135m-instruct:q8_0"),
        (lambda home: {"OLLAMA_MODEL": str(linked(home / "files").parent)}, "local", "local/files:q8_0"),
        (
            lambda home: {
                "HF_MODEL": REPO,
                "OLLAMA_MODEL": "outranked:1b",
                # The platform writes the folder in lower case.
                "RUNPOD_MODEL_CACHE_DIR": str(
                    linked(home / f"cache/models--{REPO.replace('/', '--').lower()}/snapshots/abc").parents[3]
                ),
            },
            "model_store",
            HUB_NAME,
        ),
    ],
    ids=["file", "folder", "model store"],
)
def test_a_model_on_this_machine_is_served_without_a_copy_and_without_a_network(
    start_worker: StartWorker, queue: LocalQueue, tmp_path: Path, given: Given, source: str, name: str
) -> None:
    settings = given(tmp_path)
    job_id = queue.submit(ASKED)
    worker = start_worker(real=True, OLLAMA_MODELS=str(tmp_path / "models"), **settings)
    answer = queue.wait(job_id, LIMIT_S)
    assert answer["status"] == "COMPLETED", answer
    assert answer["output"][0]["model"] == name
    assert placed_of(worker) == (source, name)
    worker.stop()
    # The second start finds it by name, and never looks at the source.
    again = start_worker(real=True, OLLAMA_MODELS=str(tmp_path / "models"), **settings)
    assert placed_of(again) == ("local", name)
    again.wait_event("boot.ready", LIMIT_S)
    passed = {record["source"] for record in again.records if record["event"] == "source.passed_over"}
    assert not passed
    large = [path for path in (tmp_path / "models" / "blobs").iterdir() if path.stat().st_size > 1 << 20]
    assert len(large) == 1
    assert large[0].samefile(smollm2_gguf()), "the weights were copied"


def test_a_model_from_the_hub_is_downloaded_once_and_needs_no_hub_again(
    start_worker: StartWorker, queue: LocalQueue, tmp_path: Path, hub: RangeServer
) -> None:
    settings = {"HF_MODEL": f"https://huggingface.co/{REPO}", "OLLAMA_MODELS": str(tmp_path / "models")}
    job_id = queue.submit({**ASKED, "model": REPO})
    worker = start_worker(real=True, HF_ENDPOINT=hub.url, **settings)
    assert queue.wait(job_id, LIMIT_S)["status"] == "COMPLETED"
    assert placed_of(worker) == ("hub", HUB_NAME)
    worker.stop()
    sent_bytes = hub.sent_bytes
    # Nobody listens there: the hub is down.
    again = start_worker(real=True, HF_ENDPOINT="http://127.0.0.1:9", **settings)
    assert again.wait_event("boot.ready", LIMIT_S)["model"] == HUB_NAME
    assert hub.sent_bytes == sent_bytes
    assert sent_bytes < 1.05 * smollm2_gguf().stat().st_size


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"OLLAMA_MODEL": "s3://models/one.gguf"}, "s3/models-one:latest"),
        (
            {"HF_MODEL": f"{REPO}:q8_0", "WORKER_OBJECT_STORE": "s3://models/", "WORKER_SOURCES": "object_store"},
            HUB_NAME,
        ),
    ],
    ids=["an object", "a mirror"],
)
def test_a_model_comes_from_object_storage(
    start_worker: StartWorker,
    queue: LocalQueue,
    tmp_path: Path,
    bucket: RangeServer,
    settings: dict[str, str],
    name: str,
) -> None:
    job_id = queue.submit(ASKED)
    worker = start_worker(
        real=True,
        OLLAMA_MODELS=str(tmp_path / "models"),
        AWS_ENDPOINT_URL_S3=bucket.url,
        **KEYS,
        **settings,
    )
    assert queue.wait(job_id, LIMIT_S)["status"] == "COMPLETED"
    assert placed_of(worker) == ("object_store", name)
    assert SECRET_KEY not in "\n".join(worker.lines)


def test_a_model_in_another_store_is_served_from_there(
    start_worker: StartWorker, queue: LocalQueue, store_home: Path, tmp_path: Path
) -> None:
    volume = tmp_path / "volume" / "ollama"
    volume.mkdir(parents=True)
    (volume / "models").symlink_to(store_home / "models")
    job_id = queue.submit(ASKED)
    worker = start_worker(real=True, OLLAMA_MODELS=str(tmp_path / "own"), WORKER_VOLUME=str(tmp_path / "volume"))
    assert queue.wait(job_id, LIMIT_S)["status"] == "COMPLETED"
    assert worker.wait_event("weights.placed")["store"] == str(volume / "models")
    worker.stop()
    assert not list((tmp_path / "own").rglob("*sha256*")), "something was copied"


def test_a_model_nobody_has_ends_the_worker_with_every_reason(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(
        HF_MODEL="no/such-repo",
        HF_ENDPOINT="http://127.0.0.1:9",
        OLLAMA_MODELS=str(tmp_path / "models"),
        WORKER_SOURCES="model_store,hub",
    )
    assert worker.wait(LIMIT_S) != 0
    message = worker.wait_event("boot.failed")["message"]
    assert "no source has 'no/such-repo': model_store: " in message
    assert "hub: HF_ENDPOINT=http://127.0.0.1:9 cannot be reached" in message
    assert "Check HF_MODEL" in message
    assert not list((tmp_path / "models").rglob("*sha256*"))


def test_other_models_come_when_jobs_ask_for_them(
    start_worker: StartWorker, queue: LocalQueue, tmp_path: Path, hub: RangeServer
) -> None:
    settings = {
        "WORKER_MODELS": f"{linked(tmp_path / 'files', 'First-Q8_0.gguf')}, hf.co/{REPO}:Q8_0",
        "HF_ENDPOINT": hub.url,
        "OLLAMA_MODELS": str(tmp_path / "models"),
    }
    first = queue.submit(ASKED)
    worker = start_worker(real=True, **settings)
    assert queue.wait(first, LIMIT_S)["output"][0]["model"] == "local/first:q8_0"
    # Eight jobs at once ask for the second: it is downloaded once, and each is answered by it.
    others = [queue.submit({**ASKED, "model": f"hf.co/{REPO}:Q8_0"}) for _ in range(8)]
    for job_id in others:
        answer = queue.wait(job_id, LIMIT_S)
        assert answer["status"] == "COMPLETED", answer
        # Its tag is spelled as that of the other model: Ollama would take either for the other's.
        assert answer["output"][0]["model"] == f"hf.co/{REPO}:q8_0"
    refused = queue.wait(queue.submit({**ASKED, "model": "absent:1b"}), LIMIT_S)
    assert refused["status"] == "FAILED"
    assert "not found" in refused["error"]
    assert "local/first:q8_0" in refused["error"], "what there is is not said"
    worker.stop()
    assert hub.sent_bytes < 1.05 * smollm2_gguf().stat().st_size


def test_any_model_comes_where_that_is_allowed(
    start_worker: StartWorker, queue: LocalQueue, tmp_path: Path, hub: RangeServer
) -> None:
    # A store of its own: what comes must not be there for the next test.
    register_gguf(tmp_path / "models", MODEL, smollm2_gguf())
    worker = start_worker(
        real=True, OLLAMA_MODELS=str(tmp_path / "models"), HF_ENDPOINT=hub.url, WORKER_PULL_ON_DEMAND="1"
    )
    body = {"model": f"hf.co/{REPO}:Q8_0", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    asked = queue.submit({"openai_route": "/v1/chat/completions", "openai_input": body})
    answer = queue.wait(asked, LIMIT_S)
    assert answer["status"] == "COMPLETED", answer
    assert answer["output"][0]["choices"][0]["message"]["role"] == "assistant"
    missing = queue.wait(queue.submit({**ASKED, "model": "hf.co/no/such:Q8_0"}), LIMIT_S)
    assert missing["status"] == "FAILED"
    assert "no source has" in missing["error"]
    # A job may not make the worker read its disks.
    forbidden = queue.wait(queue.submit({**ASKED, "model": "/etc/passwd"}), LIMIT_S)
    assert forbidden["status"] == "FAILED"
    assert "no source" not in forbidden["error"]
    resident = queue.wait(queue.submit(ASKED), LIMIT_S)
    assert resident["output"][0]["model"] == MODEL
    worker.stop()


@pytest.mark.parametrize("kind", ["file", "folder", "s3"])
def test_one_command_answers_with_the_model_it_is_pointed_at(
    tmp_path: Path, marked: Marked, bucket: RangeServer, kind: str
) -> None:
    pointed = {"s3": "s3://models/one.gguf"}.get(kind) or str(
        linked(tmp_path / "files") if kind == "file" else linked(tmp_path / "files").parent
    )
    passed_on = {name: os.environ[name] for name in ("PATH", "OLLAMA_BIN") if name in os.environ}
    environ = {**passed_on, "HOME": str(tmp_path), "AWS_ENDPOINT_URL": bucket.url, **KEYS, **marked.environ}
    done = subprocess.run(
        [sys.executable, "-m", "worker", "local", "run", "--ask", "Say hello.", "--model", pointed],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Model:  {pointed}" in done.stdout
    assert "the model is in memory" in done.stdout
    assert "weights from" in done.stdout
