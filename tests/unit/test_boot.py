from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.repositories import folder
from worker.boot import Boot, Started
from worker.branch import branch
from worker.config import Config, load
from worker.errors import BootError, ConfigInvalid, GpuUnusable, ServerExited, ServerTimeout, WeightsUnavailable
from worker.kernels import Kernels
from worker.local.process import ROOT, free_port
from worker.outset import outset
from worker.server import Server
from worker.view import View

if TYPE_CHECKING:
    from tests.conftest import Marked, Written

LIMIT_S = 60.0
MODEL = "smollm2:135m"
FAKE = [sys.executable, str(ROOT / "tests" / "fakes" / "server.py"), "serve"]
# Answers each path with the JSON given for it; `null` is the end of the process.
SCRIPTED = """
import http.server, json, os, shutil, sys

answers = json.loads(sys.argv[1])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = answers.get(self.path, {})
        if answer is None:
            print("died of", self.path, flush=True)
            os._exit(9)
        if "copied" in answer:
            shutil.copytree(answer["copied"], os.environ["OLLAMA_MODELS"], dirs_exist_ok=True)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass

host, _, port = os.environ["OLLAMA_HOST"].partition(":")
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""
VERSION = {"/api/version": {"version": "1"}}
LOADED = {"/api/ps": {"models": [{"name": MODEL, "size": 5, "size_vram": 5, "context_length": 7}]}}

Configuration = Callable[[dict[str, str]], Config]
RunBoot = Callable[..., Server]


def scripted(answers: dict[str, Any]) -> list[str]:
    return [sys.executable, "-c", SCRIPTED, json.dumps({**VERSION, **answers})]


@pytest.fixture
def run_boot(written: Written, marked: Marked, store_home: Path, tmp_path: Path) -> Iterator[RunBoot]:
    """Spawn a server and boot on it; keywords in capitals are the environment of both."""
    servers = []

    def _boot(
        argv: list[str] = FAKE,
        *,
        import_sdk: Callable[[], str] = lambda: "1.2.3",
        configuration: Configuration = load,
        **settings: str,
    ) -> Server:
        environ = {
            "PATH": os.environ["PATH"],
            "RUNPOD_WEBHOOK_GET_JOB": "http://x/$ID?a",
            "OLLAMA_HOST": f"127.0.0.1:{free_port()}",
            "OLLAMA_MODEL": MODEL,
            "OLLAMA_MODELS": str(store_home / "models"),
            "HOME": str(tmp_path / "home"),
            "WORKER_VOLUME": str(tmp_path / "volume"),
            "WORKER_SERVER_COMMAND": shlex.join(argv),
            "WORKER_ALLOW_CPU": "1",
            **settings,
        }
        server = Server(written.writer)
        servers.append(server)
        start = outset(environ)
        view = View(tmp_path / "view" / "store", start.stores[0])
        server.spawn(argv, {**environ, **marked.environ, **view.open()})
        started = Started(start, server, view, Kernels(environ, None, written.writer), written.writer)
        boot = Boot(started, branch("configuration", lambda: configuration(environ)))
        boot.run(importer=lambda: import_sdk, judge=lambda: None)
        return server

    yield _boot
    for server in servers:
        server.stop(grace_s=1.0)


def names(written: Written) -> list[str]:
    return [record["event"] for record in written.records if record["event"] != "server.logged"]


def test_a_boot_with_the_model_in_the_store(run_boot: RunBoot, written: Written) -> None:
    server = run_boot()
    assert not server.ended
    assert set(names(written)) == {
        "server.spawned",
        "sdk_import.started",
        "sdk_import.finished",
        "weights.requested",
        "weights.placed",
        "server.answered",
        "load.started",
        "load.finished",
        "boot.ready",
    }
    order = names(written)
    assert order[-1] == "boot.ready"
    # The join: weights and server before the load, and nothing else.
    assert max(order.index("weights.placed"), order.index("server.answered")) < order.index("load.started")
    # The fork: the weights are found and the SDK comes in while the server starts or loads.
    assert order.index("server.spawned") < order.index("weights.requested") < order.index("server.answered")
    assert order.index("sdk_import.started") < order.index("load.finished")
    assert written.one("weights.placed")["source"] == "local"
    assert written.one("sdk_import.finished")["version"] == "1.2.3"
    loaded = written.one("load.finished")
    assert (loaded["model"], loaded["size_bytes"], loaded["context_length"]) == (MODEL, 1_000_000, 4096)


def test_the_sdk_is_imported_while_the_model_is_loaded(run_boot: RunBoot, written: Written) -> None:
    def patient_import() -> str:
        # One after the other would never get here.
        for _ in range(int(LIMIT_S / 0.02)):
            if written.all("load.started"):
                return "in time"
            threading.Event().wait(0.02)
        raise AssertionError("the model was not loaded meanwhile")

    run_boot(import_sdk=patient_import)
    assert written.one("sdk_import.finished")["version"] == "in time"


def test_a_model_that_is_not_in_the_store_is_pulled(
    run_boot: RunBoot, written: Written, store_home: Path, tmp_path: Path
) -> None:
    pulled = {"status": "success", "copied": str(store_home / "models")}
    run_boot(scripted({"/api/pull": pulled, **LOADED}), OLLAMA_MODELS=str(tmp_path / "empty"))
    passed = written.all("source.passed_over")
    assert (passed[0]["source"], passed[0]["reason"]) == (
        "local",
        f"{tmp_path / 'empty'}: the model is not in the store",
    )
    placed = written.one("weights.placed")
    assert (placed["source"], placed["store"]) == ("registry", str(tmp_path / "empty"))


def test_a_model_at_a_path_is_registered_and_served_by_its_name(
    run_boot: RunBoot, written: Written, tmp_path: Path
) -> None:
    place = folder(tmp_path / "files", "Tiny-Q8_0.gguf") / "Tiny-Q8_0.gguf"
    loaded = {"/api/ps": {"models": [{"name": "local/tiny:q8_0", "size": 5, "size_vram": 5, "context_length": 7}]}}
    run_boot(scripted(loaded), OLLAMA_MODEL=str(place), OLLAMA_MODELS=str(tmp_path / "empty"))
    assert written.one("weights.placed")["source"] == "local"
    assert written.one("load.started")["model"] == written.one("boot.ready")["model"] == "local/tiny:q8_0"


def test_nothing_urgent_waits_for_the_configuration(run_boot: RunBoot, written: Written) -> None:
    checked = threading.Event()

    def loaded_first(environ: dict[str, str]) -> Config:
        # Checked one after the other, the load would never begin.
        for _ in range(int(LIMIT_S / 0.02)):
            if written.all("load.started"):
                checked.set()
                break
            threading.Event().wait(0.02)
        return load(environ)

    run_boot(configuration=loaded_first)
    assert checked.is_set()


def test_mistakes_in_the_configuration_end_a_boot_under_way(run_boot: RunBoot, written: Written) -> None:
    with pytest.raises(ConfigInvalid, match="WORKER_MODE"):
        run_boot(WORKER_MODE="nonsense", FAKE_LISTEN_DELAY_S="60")
    assert "load.started" not in names(written)


@pytest.mark.parametrize(
    ("settings", "kind", "sentence"),
    [
        (
            {"FAKE_NEVER_ANSWER": "1", "WORKER_SERVER_TIMEOUT_S": "0.5"},
            ServerTimeout,
            "stage 'server start' did not finish within 0.5 s",
        ),
        (
            {"FAKE_LISTEN_DELAY_S": "60", "WORKER_SERVER_TIMEOUT_S": "0.5"},
            ServerTimeout,
            "stage 'server start' did not finish within 0.5 s",
        ),
        ({"FAKE_NO_KNOB": "1"}, ServerExited, "the server exited with code 2: the fake server has no knob"),
        ({"FAKE_LOAD_ERROR": "unknown architecture"}, WeightsUnavailable, "could not load model 'smollm2:135m'"),
        (
            {"FAKE_LOAD_S": "60", "WORKER_LOAD_TIMEOUT_S": "0.3"},
            ServerTimeout,
            "stage 'load' did not finish within 0.3 s",
        ),
        ({"FAKE_LOAD_S": "60", "FAKE_EXIT_AFTER_S": "1"}, ServerExited, "the server exited with code 3"),
        ({"FAKE_VRAM_SHARE": "0.5", "WORKER_ALLOW_CPU": "0"}, GpuUnusable, "only 50% of 'smollm2:135m' is on a GPU"),
        ({"OLLAMA_MODEL": "absent:1b"}, WeightsUnavailable, "absent:1b"),
    ],
    ids=["silent", "closed", "exits", "unloadable", "slow-load", "dies-loading", "no-gpu", "no-model"],
)
def test_a_boot_that_fails_says_where(
    run_boot: RunBoot, written: Written, settings: dict[str, str], kind: type[BootError], sentence: str
) -> None:
    with pytest.raises(kind) as caught:
        run_boot(**settings)
    assert type(caught.value) is kind
    assert sentence in caught.value.sentence()
    assert "\n" not in caught.value.sentence()
    assert "boot.ready" not in names(written)


def test_a_server_that_dies_of_a_pull_is_not_taken_for_a_missing_model(run_boot: RunBoot) -> None:
    with pytest.raises(ServerExited, match="the server exited with code 9: died of /api/pull"):
        run_boot(scripted({"/api/pull": None}), OLLAMA_MODEL="absent:1b")


@pytest.mark.parametrize("path", ["/api/generate", "/api/ps"])
def test_a_server_that_dies_of_a_load_says_why(run_boot: RunBoot, path: str) -> None:
    with pytest.raises(ServerExited, match=f"the server exited with code 9: died of {path}"):
        run_boot(scripted({**LOADED, path: None}))


def test_a_model_that_does_not_stay_loaded_is_no_boot(run_boot: RunBoot) -> None:
    with pytest.raises(BootError, match="does not list it as resident"):
        run_boot(scripted({"/api/ps": {"models": []}}))


def test_a_broken_sdk_ends_the_boot(run_boot: RunBoot, written: Written) -> None:
    def broken() -> str:
        raise ImportError("no module named runpod")

    with pytest.raises(ImportError, match="runpod"):
        run_boot(import_sdk=broken)
    assert "boot.ready" not in names(written)
