"""`python -m worker check` as a person and as the image build run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.cuda_library import library, ptx, sass
from worker.environment import BACKEND_FILE
from worker.local.process import ROOT


def check(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "worker", "check", *arguments],
        env={"PATH": os.environ["PATH"]} | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    for name, modules in {"cuda_v12": [sass("80"), sass("90"), ptx("90")], "cuda_v13": [ptx("75")]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / BACKEND_FILE).write_bytes(library(modules))
    return tmp_path


def test_an_image_with_native_code_for_its_targets_passes(libraries: Path) -> None:
    done = check("--libraries", str(libraries), "--targets", "8.0 9.0", "--variants", "cuda_v12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "native code for 8.0 9.0: yes" in done.stdout
    assert "cuda_v13" not in done.stdout


def test_an_image_that_would_compile_at_the_first_boot_fails_and_names_the_target(libraries: Path) -> None:
    done = check("--libraries", str(libraries), "--targets", "8.0 12.0", "--variants", "cuda_v12")
    assert done.returncode == 1
    assert "problem: no native code for 12.0" in done.stdout


def test_an_image_without_the_backend_it_was_built_for_fails(libraries: Path) -> None:
    done = check("--libraries", str(libraries), "--targets", "9.0", "--variants", "cuda_v12 cuda_v11", "--json")
    assert done.returncode == 1
    assert any(p.startswith("cuda_v11 is not there: in ") for p in json.loads(done.stdout)["problems"])


def test_a_damaged_library_fails_the_image_with_its_name(libraries: Path) -> None:
    path = libraries / "cuda_v12" / BACKEND_FILE
    path.write_bytes(path.read_bytes()[:200])
    done = check("--libraries", str(libraries), "--targets", "9.0", "--variants", "cuda_v12")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cuda_v12" in done.stdout


def test_a_machine_without_a_gpu_is_a_problem_unless_the_cpu_is_allowed() -> None:
    refused = check()
    assert refused.returncode == 1
    assert "no NVIDIA device is visible" in refused.stdout
    allowed = check(WORKER_ALLOW_CPU="1")
    assert allowed.returncode == 0, allowed.stdout
    assert "no problem found" in allowed.stdout


def test_every_setting_is_shown_with_its_reason_and_the_users_own_is_marked() -> None:
    done = check(WORKER_ALLOW_CPU="1", OLLAMA_CONTEXT_LENGTH="8192")
    line = next(line for line in done.stdout.splitlines() if line.startswith("OLLAMA_CONTEXT_LENGTH"))
    assert line.split() == ["OLLAMA_CONTEXT_LENGTH=8192", "set", "by", "you"]
    assert "OLLAMA_NOPRUNE=1" in done.stdout


def test_what_is_the_users_alone_is_shown_too_but_no_secret() -> None:
    mine = {"OLLAMA_DEBUG": "1", "LLAMA_ARG_FIT": "on", "LLAMA_ARG_THREADS": "3", "OLLAMA_LLM_LIBRARY": "cuda_v12"}
    done = check(WORKER_ALLOW_CPU="1", OLLAMA_API_KEY="hush", OLLAMA_VULKAN=" ", **mine)
    shown = {line.split()[0] for line in done.stdout.splitlines() if line.endswith("set by you")}
    assert shown == {f"{name}={value}" for name, value in mine.items()} | {"OLLAMA_API_KEY=(hidden)"}
    assert "hush" not in done.stdout


def test_a_value_the_server_cannot_read_is_told_and_what_counts_instead() -> None:
    wrong = {"OLLAMA_CONTEXT_LENGTH": "abc", "OLLAMA_KEEP_ALIVE": "forever", "OLLAMA_MAX_QUEUE": "many"}
    done = check(WORKER_ALLOW_CPU="1", **wrong)
    assert done.returncode == 0
    shown = {line.split("  ")[0].strip(): line for line in done.stdout.splitlines()}
    assert "your 'abc' is no whole number, as 8192; left to itself" in shown["OLLAMA_CONTEXT_LENGTH=4096"]
    assert "your 'forever' is no duration, as 30m or -1; " in shown["OLLAMA_KEEP_ALIVE=-1"]
    assert shown["OLLAMA_MAX_QUEUE=many"].endswith("set by you, and ignored: no whole number, as 8192")
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert [note.split("=")[0] for note in notes] == [f"note: {name}" for name in wrong]
    assert notes[0].endswith("='abc' is ignored, because it is no whole number, as 8192: the worker sets 4096")
    assert json.loads(check("--json", WORKER_ALLOW_CPU="1", **wrong).stdout)["notes"] == [
        note.removeprefix("note: ") for note in notes
    ]


def test_libraries_and_variants_that_are_not_there_are_problems_without_a_gpu_too(libraries: Path) -> None:
    cpu = {"WORKER_ALLOW_CPU": "1"}
    for targets in ([], ["--targets", "9.0"]):
        done = check("--libraries", "/nosuch", *targets, **cpu)
        assert done.returncode == 1
        assert "problem: /nosuch is no folder: --libraries is the server's, as /usr/lib/ollama" in done.stdout
        done = check("--libraries", str(libraries), "--variants", "cuda_v99", *targets, **cpu)
        assert done.returncode == 1
        told = f"problem: cuda_v99 is not there: in {libraries} there is cuda_v12, cuda_v13"
        assert told in done.stdout
    done = check("--variants", "cuda_v99", PATH="/nosuch", **cpu)
    assert done.returncode == 1
    assert (
        "problem: cuda_v99 is not there: there are no libraries beside a server here: name them with --lib"
        in done.stdout
    )
    done = check("--libraries", str(libraries), "--variants", "cuda_v12", **cpu)
    assert done.returncode == 0, done.stdout
    assert "cuda_v13" not in done.stdout


def test_what_is_not_set_here_says_why() -> None:
    lines = check(WORKER_ALLOW_CPU="1").stdout.splitlines()
    (fit,) = (line for line in lines if line.startswith("LLAMA_ARG_FIT"))
    assert fit.startswith("LLAMA_ARG_FIT (not set)")
    assert "no NVIDIA device" in fit
    unset = json.loads(check("--json", WORKER_ALLOW_CPU="1").stdout)["unset"]
    assert {"name": "LLAMA_ARG_FIT", "reason": fit.removeprefix("LLAMA_ARG_FIT (not set)").strip()} in unset


def test_mistakes_in_the_configuration_are_all_listed() -> None:
    done = check(WORKER_ALLOW_CPU="perhaps", OLLAMA_NUM_PARALLEL="0", WORKER_DRAIN="3")
    assert done.returncode == 1
    for name in ("WORKER_ALLOW_CPU", "OLLAMA_NUM_PARALLEL", "WORKER_DRAIN"):
        assert name in done.stdout


def test_json_has_the_same_facts() -> None:
    done = check("--json", WORKER_ALLOW_CPU="1")
    value = json.loads(done.stdout)
    assert value["problems"] == []
    assert value["command"] == ["ollama", "serve"]
    assert {"name", "value", "reason", "from_user"} <= value["server"][0].keys()
    assert value["gpu"]["choice"]["outcome"] == "unusable"
