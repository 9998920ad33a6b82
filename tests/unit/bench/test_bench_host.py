"""What a machine can show of a cold start, and a server started without what a later rung brings."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cold_start import host, store
from bench.cold_start.store import ColdStore, NoModel
from tests.conftest import MODEL
from tests.fakes.cuda_image import install
from tests.fakes.cuda_library import ptx, sass
from worker import gpu
from worker.device import Device, Driver, Found
from worker.environment import BACKEND_FILE
from worker.launch import prepare

L4 = Found((Device(0, "NVIDIA L4", "GPU-1", (8, 9)),), Driver("580.95.05", (13, 0)), "NVML")


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An Ollama that knows one of our variables, with a backend of machine code and one of PTX."""
    program = install(tmp_path / "image", {"cuda_v12": [sass("89")], "cuda_v13": [ptx("89", version=(9, 0))]})
    program.write_text(program.read_text() + "# OLLAMA_SKIP_WARMUP\n", encoding="utf-8")
    monkeypatch.setenv("OLLAMA_BIN", str(program))
    monkeypatch.setattr(gpu, "detect", lambda _: L4)
    return program


@pytest.fixture
def small(store_home: Path, tmp_path: Path) -> ColdStore:
    with store.opened(tmp_path, store_home / "models", MODEL) as opened:
        return opened


def test_a_patched_server_is_told_by_the_names_in_its_program(image: Path, small: ColdStore) -> None:
    found = host.look({"PATH": "/usr/bin:/bin"}, small, landing=False)
    assert image.exists()
    assert found.server == "this Ollama"
    assert found.knows("OLLAMA_SKIP_WARMUP")
    assert not found.knows("OLLAMA_SKIP_MMPROJ")


def test_the_local_engine_knows_nothing_of_the_wrapper(small: ColdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_BIN", raising=False)
    found = host.look({"PATH": "/usr/bin:/bin"}, small, landing=False)
    assert found.server == "the local engine"
    assert not found.knows("OLLAMA_SKIP_WARMUP")


def test_the_backend_is_judged_and_another_can_be_asked_for(image: Path, small: ColdStore) -> None:
    assert image.exists()
    best = host.look({"PATH": "/usr/bin:/bin"}, small, landing=False)
    assert (best.gpu, best.outcome) == ("", "native")
    other = host.look({"PATH": "/usr/bin:/bin"}, small, "cuda_v13", landing=False)
    assert (other.gpu, other.outcome) == ("", "jit")
    assert "cuda_v11 names no CUDA backend" in host.look({"PATH": "/bin"}, small, "cuda_v11", landing=False).gpu


def test_a_machine_without_devices_or_backends_says_so(
    image: Path, small: ColdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in image.parent.parent.rglob(BACKEND_FILE):
        library.unlink()
    assert host.look({"PATH": "/bin"}, small, landing=False).gpu == "the server has no CUDA backend"
    monkeypatch.setattr(gpu, "detect", lambda _: Found((), None, "nothing answered"))
    assert host.look({"PATH": "/bin"}, small, landing=False).gpu == "no NVIDIA device is visible"
    assert host.devices({}) == ""


def test_devices_are_named_with_their_driver(image: Path) -> None:
    assert image.exists()
    assert host.devices({}) == "NVIDIA L4 (8.9), driver 580.95.05 (CUDA 13.0)"


def test_a_local_store_needs_no_landing_unless_a_folder_is_named(small: ColdStore) -> None:
    assert "the store is local" in host.look({"PATH": "/bin"}, small, landing=False).store
    assert host.look({"PATH": "/bin"}, small, landing=True).store == ""


def test_only_what_shows_the_devices_is_inherited() -> None:
    environ = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "CUDA_VISIBLE_DEVICES": "0",
        "LD_LIBRARY_PATH": "/x",
        "OLLAMA_DEBUG": "1",
    }
    assert set(host.inherited(environ)) == {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"}


def test_what_is_withheld_does_not_reach_the_server_and_its_libraries_are_found(image: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    image.write_text(f"#!/bin/sh\nenv > {shlex.quote(str(shown))}\n", encoding="utf-8")
    command = host.without(["A", "B"], f"{image} serve", tmp_path / "shim")
    subprocess.run(
        shlex.split(command), env={"PATH": "/usr/bin:/bin", "A": "1", "B": "2", "C": "3"}, check=True, timeout=60
    )
    names = {line.partition("=")[0] for line in shown.read_text().splitlines()}
    assert "C" in names
    assert not names & {"A", "B"}
    launched = prepare({"PATH": "/usr/bin:/bin", "WORKER_SERVER_COMMAND": command})
    assert launched.backends == ("cuda_v12", "cuda_v13")


def test_with_nothing_withheld_the_command_is_as_it_was(tmp_path: Path) -> None:
    assert host.without([], "ollama serve", tmp_path / "shim") == "ollama serve"
    assert not (tmp_path / "shim").exists()


def test_a_server_without_libraries_can_be_wrapped_too(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os; print(os.environ.get('A'), os.environ['B'])"]
    command = host.without(["A"], shlex.join(argv), tmp_path / "shim")
    done = subprocess.run([command], env={"A": "1", "B": "2"}, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "None 2\n"


def test_a_store_is_opened_by_name_or_by_its_only_model(store_home: Path, tmp_path: Path) -> None:
    for name in (MODEL, ""):
        with store.opened(tmp_path, store_home / "models", name) as found:
            assert found.model.name.short == MODEL
            assert not found.projector
            assert found.latency_us == 0


@pytest.mark.parametrize(("name", "words"), [("absent:1b", "'absent:1b' is not in the store"), ("", "say --model")])
def test_a_model_that_is_not_there_is_named_beside_those_that_are(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(NoModel, match=f"{words}.*it has no model"), store.opened(tmp_path, tmp_path / "empty", name):
        pass


def test_a_model_that_is_not_whole_is_refused(store_home: Path, tmp_path: Path) -> None:
    with store.opened(tmp_path, store_home / "models", MODEL) as found:
        manifest = found.models / "manifests" / found.model.name.path
    copy = tmp_path / "store" / "manifests" / found.model.name.path
    copy.parent.mkdir(parents=True)
    copy.write_bytes(manifest.read_bytes())
    with pytest.raises(NoModel, match="is not whole"), store.opened(tmp_path, tmp_path / "store", MODEL):
        pass
