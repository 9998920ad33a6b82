"""What the server is started with: which backend is named, and when the libraries are looked into."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.cuda_library import library, ptx, sass
from tests.fakes.driver_library import COMPILER, build
from worker import backend, cpu_quota, gpu, launch
from worker.device import Device, Driver, Found
from worker.environment import BACKEND_FILE, BACKEND_VARIABLE, Setting
from worker.errors import ConfigInvalid
from worker.launch import prepare
from worker.local.engine.store import register_gguf, smollm2_gguf

H100 = Found((Device(0, "NVIDIA H100", "GPU-1", (9, 0)),), Driver("580.95.05", (13, 0)), "NVML")
NATIVE = library([sass("90"), ptx("90")])
PTX_ONLY = library([ptx("90", version=(9, 0))])


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An Ollama installation without backends: bin/ollama and lib/ollama."""
    program = tmp_path / "bin" / "ollama"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "lib" / "ollama").mkdir(parents=True)
    return tmp_path


def add_backend(image: Path, name: str, content: bytes) -> None:
    directory = image / "lib" / "ollama" / name
    directory.mkdir()
    (directory / BACKEND_FILE).write_bytes(content)


def environ(image: Path, **more: str) -> dict[str, str]:
    return {"PATH": str(image / "bin"), **more}


def named(image: Path, **more: str) -> str | None:
    launch = prepare(environ(image, **more))
    return next((s.value for s in launch.settings if s.name == BACKEND_VARIABLE), None)


def test_a_server_without_cuda_backends_is_told_nothing_and_judged_nothing(image: Path) -> None:
    launch = prepare(environ(image))
    assert launch.argv == ["ollama", "serve"]
    assert launch.backends == ()
    assert BACKEND_VARIABLE not in launch.environ(environ(image))
    assert launch.judge(environ(image)) is None


def test_the_only_backend_is_named_without_reading_it(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_backend(image, "cuda_v12", b"not a library: reading it would fail")
    monkeypatch.setattr(backend, "find", lambda _: pytest.fail("read before the server was started"))
    assert named(image) == "cuda_v12"


def test_the_only_backend_is_judged_when_asked(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_backend(image, "cuda_v12", NATIVE)
    monkeypatch.setattr(gpu, "detect", lambda _: H100)
    judged = prepare(environ(image)).judge(environ(image))
    assert judged is not None
    assert (judged.backend, judged.outcome) == ("cuda_v12", "native")


def test_among_several_the_one_with_native_code_is_named(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_backend(image, "cuda_v12", NATIVE)
    add_backend(image, "cuda_v13", PTX_ONLY)
    monkeypatch.setattr(gpu, "detect", lambda _: H100)
    launch = prepare(environ(image))
    assert launch.environ({})[BACKEND_VARIABLE] == "cuda_v12"
    assert launch.judged is not None
    assert launch.judge({}) is launch.judged, "judged twice"


def test_among_several_without_a_device_ollama_decides_and_the_verdict_is_kept(image: Path) -> None:
    add_backend(image, "cuda_v12", NATIVE)
    add_backend(image, "cuda_v13", PTX_ONLY)
    launch = prepare(environ(image))
    assert BACKEND_VARIABLE not in launch.environ({})
    assert launch.judged is not None
    assert launch.judged.outcome == "unusable"


def test_the_users_own_backend_stands_and_is_judged_as_such(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_backend(image, "cuda_v12", NATIVE)
    add_backend(image, "cuda_v13", PTX_ONLY)
    monkeypatch.setattr(gpu, "detect", lambda _: H100)
    mine = environ(image, **{BACKEND_VARIABLE: "cuda_v13"})
    launch = prepare(mine)
    assert launch.environ(mine)[BACKEND_VARIABLE] == "cuda_v13"
    judged = launch.judge(mine)
    assert judged is not None
    assert judged.outcome == "jit"
    assert judged.reason.startswith("set by you")


def test_libraries_are_found_through_links_as_ollama_finds_them(image: Path, tmp_path: Path) -> None:
    add_backend(image, "cuda_v12", NATIVE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ollama").symlink_to(image / "bin" / "ollama")
    assert prepare({"PATH": str(elsewhere)}).libraries == (image / "lib" / "ollama")


def test_a_missing_program_has_no_libraries_and_is_the_servers_to_report(tmp_path: Path) -> None:
    launch = prepare({"PATH": str(tmp_path)})
    assert launch.libraries is None
    assert launch.judge({}) is None


def test_a_command_that_is_none_says_how_to_write_it() -> None:
    with pytest.raises(ConfigInvalid, match="WORKER_SERVER_COMMAND"):
        prepare({"WORKER_SERVER_COMMAND": 'ollama "serve'})


# --- What depends on the machine

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, sys
from pathlib import Path
from worker import launch
launch.DRIVER = (Path(sys.argv[1]),)
made = launch.prepare(os.environ)
print(json.dumps({s.name: s.value for s in made.settings} | {u.name: None for u in made.unset}))
"""


@pytest.fixture
def loaded(image: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of an image with one backend, a driver, and a model of 100 MB."""
    if COMPILER is None:
        pytest.skip("no C compiler for the stand-in driver library")
    add_backend(image, "cuda_v12", NATIVE)
    register_gguf(tmp_path / "models", "smollm2:135m", smollm2_gguf())
    return environ(
        image,
        HOME=str(tmp_path),
        OLLAMA_MODEL="smollm2:135m",
        OLLAMA_MODELS=str(tmp_path / "models"),
        LD_LIBRARY_PATH=str(build(tmp_path / "driver")),
    )


def told(environment: dict[str, str], driver: Path, memory_mib: int) -> dict[str, str | None]:
    """Return what a process on a machine with one device would set, None for what it leaves."""
    argv = [sys.executable, "-c", PROGRAM, str(driver)]
    env = environment | {"FAKE_NVML_DEVICES": f"NVIDIA L4,8.9,{memory_mib}"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("memory_mib", "fit"), [(23034, "off"), (1024, None)])
def test_the_search_for_a_placement_is_left_out_where_the_model_fits(
    loaded: dict[str, str], tmp_path: Path, memory_mib: int, fit: str | None
) -> None:
    assert told(loaded, tmp_path, memory_mib)["LLAMA_ARG_FIT"] == fit


def test_without_a_driver_nobody_is_asked(loaded: dict[str, str], tmp_path: Path) -> None:
    assert told(loaded, tmp_path / "none", 23034)["LLAMA_ARG_FIT"] is None


def test_the_users_own_word_on_the_search_stands(loaded: dict[str, str], tmp_path: Path) -> None:
    assert told(loaded | {"LLAMA_ARG_FIT": "on"}, tmp_path, 23034)["LLAMA_ARG_FIT"] == "on"


def test_a_machine_without_a_device_imports_nothing_for_it(image: Path) -> None:
    program = f"""
import sys
from worker.launch import prepare
made = prepare({environ(image)!r})
assert [unset.name for unset in made.unset][-1] == "LLAMA_ARG_FIT"
print(sorted({{"ctypes", "worker.fit", "worker.video_memory", "pydantic"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_quota_below_the_cpus_becomes_threads(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(cpu_quota, "quota_cpus", lambda: 6.5)
    made = prepare(environ(image))
    assert made.environ({})["LLAMA_ARG_THREADS"] == "6"
    assert "LLAMA_ARG_THREADS" not in {unset.name for unset in made.unset}
    mine = prepare(environ(image, LLAMA_ARG_THREADS="9"))
    assert Setting("LLAMA_ARG_THREADS", "9", "set by you", from_user=True) in mine.settings


def test_without_a_quota_the_runner_counts_by_itself(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_quota, "quota_cpus", lambda: None)
    made = prepare(environ(image))
    assert "LLAMA_ARG_THREADS" not in made.environ({})
    assert "LLAMA_ARG_THREADS" in {unset.name for unset in made.unset}
