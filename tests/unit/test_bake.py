"""Kernels baked by the server a worker would start: whom they are for, what makes them, and every way it can end."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, Marked
from tests.fakes.cuda_image import install
from tests.fakes.cuda_library import ptx, sass
from worker import artifact, bake, exercise, gpu
from worker.device import Device, Driver, Found
from worker.exercise import Exercise
from worker.jit_cache import JitCache, Key
from worker.local.process import free_port

DRIVER = Driver("580.95.05", (13, 0))
H100 = Found((Device(0, "NVIDIA H100", "GPU-1", (9, 0)),), DRIVER, "NVML")
NOTHING = Found((), None, "nothing answered")
PTX_ONLY = [ptx("90", version=(9, 0))]
Bake = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bake_here(
    tmp_path: Path,
    store_home: Path,
    marked: Marked,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Bake:
    """Bake in an image with one backend that has only PTX; return exit code, what was said, and what was complained."""
    program = install(tmp_path / "image", {"cuda_v13": PTX_ONLY})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(*argv: str, found: Found = H100, **settings: str) -> tuple[int, str, str]:
        monkeypatch.setattr(gpu, "detect", lambda _: found)
        environ = {
            **marked.environ,
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path / "home"),
            "WORKER_SERVER_COMMAND": shlex.join([str(program), "serve"]),
            "WORKER_VOLUME": str(tmp_path / "volume"),
            "OLLAMA_MODELS": str(store_home / "models"),
            "OLLAMA_MODEL": MODEL,
            "OLLAMA_HOST": f"127.0.0.1:{free_port()}",
            "FAKE_COMPILED_BYTES": "1000",
            **settings,
        }
        code = bake.main(argv, environ)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def kinds(packed: Path) -> set[str]:
    return {Path(entry.path).name.partition("-")[0] for entry in artifact.inspect(packed).entries}


def test_what_the_driver_compiled_is_packed_for_these_devices(bake_here: Bake, tmp_path: Path) -> None:
    code, said, complained = bake_here()
    assert (code, complained) == (0, "")
    (packed,) = kept(tmp_path / "volume" / "jit-cache")
    assert packed.name.startswith("sm9.0-driver580.95.05-cuda_v13-")
    assert artifact.inspect(packed).about["driver"] == "580.95.05"
    # One for every power of two up to the context, and the driver's index.
    assert kinds(packed) >= {"index", *(f"batch{bits}" for bits in range(2, 11))}
    assert said.splitlines()[-1].startswith(f"kept {len(artifact.inspect(packed).entries)} files, ")
    assert "near the context: " in said
    assert not list(tmp_path.glob("bake.*"))


def test_a_worker_with_the_same_devices_finds_them(bake_here: Bake, tmp_path: Path) -> None:
    bake_here()
    (packed,) = kept(tmp_path / "volume" / "jit-cache")
    about = artifact.inspect(packed).about
    key = Key(about["capability"], about["driver"], about["engine"])
    outcome = JitCache(tmp_path / "next", packed.parent, key).hydrate()
    assert outcome.done
    assert (tmp_path / "next" / "index").is_file()


def test_the_folder_can_be_chosen(bake_here: Bake, tmp_path: Path) -> None:
    assert bake_here("--out", str(tmp_path / "for-the-image"))[0] == 0
    assert len(kept(tmp_path / "for-the-image")) == 1
    assert kept(tmp_path / "volume") == []


def test_a_second_model_adds_to_what_the_first_left(bake_here: Bake, tmp_path: Path) -> None:
    bake_here()
    (packed,) = kept(tmp_path / "volume" / "jit-cache")
    before = kinds(packed)
    code, said, _ = bake_here(OLLAMA_NUM_PARALLEL="4")
    assert code == 0
    assert "files are kept already" in said
    assert "4 at once: " in said
    assert said.splitlines()[-1] == "nothing written: the driver compiled nothing new"
    assert kinds(packed) == before


def test_more_than_before_replaces_it(bake_here: Bake, tmp_path: Path) -> None:
    bake_here()
    (packed,) = kept(tmp_path / "volume" / "jit-cache")
    before = artifact.inspect(packed).size_bytes
    assert bake_here(FAKE_COMPILED_BYTES="5000")[0] == 0
    assert artifact.inspect(packed).size_bytes > before


def test_native_code_needs_no_baking(bake_here: Bake, tmp_path: Path) -> None:
    program = install(tmp_path / "native", {"cuda_v12": [sass("90")]})
    settings = {"WORKER_SERVER_COMMAND": shlex.join([str(program), "serve"])}
    assert bake_here(**settings) == (0, "unneeded: cuda_v12 has native code for every device here\n", "")
    assert kept(tmp_path / "volume") == []
    code, said, _ = bake_here("--force", **settings)
    assert code == 0
    assert said.splitlines()[-1].startswith("kept ")


def one_sentence(result: tuple[int, str, str]) -> str:
    code, _, complained = result
    assert code == 1
    assert complained.startswith("bake: ")
    assert len(complained.splitlines()) == 1
    return complained


def test_without_a_gpu_it_says_what_is_missing(bake_here: Bake, tmp_path: Path) -> None:
    told = one_sentence(bake_here(found=NOTHING))
    assert "none is visible here" in told
    assert "--gpus all" in told
    assert kept(tmp_path / "volume") == []


@pytest.mark.parametrize(
    ("found", "settings", "words"),
    [
        (H100, {"WORKER_SERVER_COMMAND": f"{sys.executable} serve"}, "the server has no CUDA backend"),
        (H100, {"WORKER_SERVER_COMMAND": "'"}, "WORKER_SERVER_COMMAND"),
        (H100, {"WORKER_DIRECTION": "up"}, "WORKER_DIRECTION is not a setting of this worker"),
        (H100, {"OLLAMA_MODEL": "absent:1b"}, "'absent:1b' is in no store here"),
        (H100, {"FAKE_LOAD_ERROR": "out of memory"}, "out of memory"),
        (H100, {"FAKE_VRAM_SHARE": "0.5"}, "only 50% of"),
        (H100, {"FAKE_EXIT_AFTER_S": "0.01"}, "exited with code 3"),
        (H100, {"FAKE_NEVER_ANSWER": "1", "WORKER_SERVER_TIMEOUT_S": "0.3"}, "server start"),
        (Found((Device(0, "NVIDIA P100", "", (6, 0)),), DRIVER, "NVML"), {}, "no kernel runs on the devices here"),
        (Found((Device(0, "a GPU"),), DRIVER, "/proc"), {}, "no device tells its compute capability"),
        (Found(H100.devices, None, "NVML"), {}, "the driver's version is not known"),
    ],
)
def test_whatever_is_wrong_is_one_sentence_and_nothing_is_left(
    found: Found, settings: dict[str, str], words: str, bake_here: Bake, tmp_path: Path
) -> None:
    assert words in one_sentence(bake_here(found=found, **settings))
    assert kept(tmp_path / "volume") == []
    assert not list(tmp_path.glob("bake.*"))


def test_a_model_that_refuses_every_prompt_leaves_nothing(
    bake_here: Bake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fake server's models are blind.
    monkeypatch.setattr(exercise, "plan", lambda *_, **__: [Exercise("an image", 2, image=True)])
    assert "the model answered no prompt: " in one_sentence(bake_here())
    assert kept(tmp_path / "volume") == []


def test_a_driver_that_compiled_nothing_is_no_success(bake_here: Bake, tmp_path: Path) -> None:
    code, said, _ = bake_here(FAKE_COMPILED_BYTES="0")
    assert code == 1
    assert said.splitlines()[-1] == "nothing written: the driver compiled nothing"
    assert kept(tmp_path / "volume") == []


def test_the_server_is_started_as_the_worker_starts_it(
    bake_here: Bake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    real = bake.Server.spawn

    def spawn(server: Any, argv: list[str], environ: dict[str, str]) -> None:
        seen.append(environ)
        real(server, argv, environ)

    monkeypatch.setattr(bake.Server, "spawn", spawn)
    bake_here(CUDA_CACHE_PATH="/somewhere/else", CUDA_CACHE_MAXSIZE="")
    (environ,) = seen
    assert environ["OLLAMA_LLM_LIBRARY"] == "cuda_v13"
    assert environ["OLLAMA_KEEP_ALIVE"] == "-1"
    assert environ["CUDA_CACHE_PATH"].startswith(str(tmp_path / "bake."))
    assert environ["CUDA_CACHE_MAXSIZE"] == bake.MAXSIZE
