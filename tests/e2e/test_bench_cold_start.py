"""The cold-start bench in miniature: every rung reaches the server as it says, and what was measured is kept."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.cold_start import report, rungs
from bench.cold_start.options import Options
from tests.fakes.cuda_image import driver_library, install
from tests.fakes.cuda_library import ptx
from worker import gpu
from worker.device import Device, Driver, Found
from worker.local.engine.store import register_gguf, smollm2_gguf

COMPILER = shutil.which("cc")
L4 = Found((Device(0, "NVIDIA L4", "GPU-1", (8, 9)),), Driver("580.95.05", (13, 0)), "NVML")
PATCHED = ("OLLAMA_SKIP_WARMUP", "OLLAMA_SKIP_MMPROJ", "OLLAMA_LOAD_POLL_MS")
# What a rung that was run left of itself.
Shown = dict[str, list[dict[str, str]]]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == [], "the bench left something"


def kept(out: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((out / "cold-start.json").read_text())
    return result


@pytest.mark.timeout(300)
def test_the_small_model_climbs_what_this_machine_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the local engine, or with the Ollama that OLLAMA_BIN names."""
    out = tmp_path / "out"
    which = ("stock", "structure", "jit-warm")
    assert report.run(Options(runs=1, out=out, which=which)) == 0
    result = kept(out)
    stock, structure, jit = result["rungs"]
    assert result["command"] == "python -m worker bench cold-start --runs 1 --rungs stock structure jit-warm"
    assert result["model"] == "smollm2:135m"
    assert stock["first_chunk"]["median_s"] == stock["runs_s"][0] > 0
    assert structure["decode_tokens_per_s"]["median"] > 0
    assert structure["prefill_tokens_per_s"]["median"] > 0
    assert jit["not_run"]
    assert (out / "cold-start.txt").read_text() in capsys.readouterr().out
    ET.fromstring((out / "cold-start.svg").read_text())  # noqa: S314 - what the bench has just drawn
    events = [json.loads(line)["event"] for line in (out / "2-structure-1.jsonl").read_text().splitlines()]
    assert {"container.started", "boot.ready", "job.chunk_posted"} <= set(events)
    assert "server.logged" not in events
    everything = "".join(path.read_text() for path in out.iterdir())
    assert str(tmp_path) not in everything, "a path of this machine was kept"


class Image:
    """A patched Ollama with a GPU that needs its kernels compiled, none of it real; its starts leave what they saw."""

    def __init__(self, root: Path) -> None:
        self.program = install(root, {"cuda_v12": [ptx("89")]})
        self._starts = root / "starts"
        self._starts.mkdir()
        server = self.program.read_text().partition("exec ")[2].partition(' "$@"')[0]
        self.program.write_text(
            f"""#!/bin/sh
# {" ".join(PATCHED)}
seen={shlex.quote(str(self._starts))}/$(date +%s%N).$$
env >"$seen"
echo "KERNELS=$(find "$CUDA_CACHE_PATH" -type f 2>/dev/null | wc -l)" >>"$seen"
unset FAKE_NVML_DEVICES FAKE_NVML_DRIVER FAKE_NVML_CUDA
FAKE_COMPILED_BYTES=1000 exec {server} "$@"
"""
        )

    def starts(self) -> list[dict[str, str]]:
        texts = [path.read_text() for path in sorted(self._starts.iterdir())]
        return [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in texts]


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    made = Image(tmp_path / "image")
    monkeypatch.setenv("OLLAMA_BIN", str(made.program))
    return made


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A store with a model that has a projector."""
    register_gguf(tmp_path / "models", "seeing:1b", smollm2_gguf(), extras={"projector": "no projector, but a layer"})
    return tmp_path / "models"


@pytest.fixture
def _a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device for this process and, through a stand-in for the driver's library, for the workers it starts."""
    if COMPILER is None:
        pytest.skip("no C compiler for the stand-in driver library")
    monkeypatch.setattr(gpu, "detect", lambda _: L4)
    inherited = {
        "LD_LIBRARY_PATH": str(driver_library(tmp_path / "driver", COMPILER)),
        "FAKE_NVML_DEVICES": "NVIDIA L4,8.9,23034",
        "FAKE_NVML_DRIVER": "580.95.05",
        "FAKE_NVML_CUDA": "13000",
    }
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("bench.cold_start.host._OF_DEVICES", tuple(inherited))


@pytest.mark.usefixtures("_a_gpu")
def test_each_rung_reaches_the_server_as_it_says(image: Image, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    which = tuple(name for name in rungs.NAMES if name != "runner")
    options = Options(runs=1, out=out, models=models, which=which, landing_dir=tmp_path, jit="mirror")
    assert report.run(options) == 0
    result = kept(out)
    assert not [row["not_run"] for row in result["rungs"] if "not_run" in row]
    assert "NVIDIA L4 (8.9)" in result["machine"]
    # The first start of all and the one that fills the warm rung's volume do not count.
    starts = image.starts()
    assert len(starts) == len(which) + 2
    seen = dict(zip(which, starts[2:], strict=True))
    given = {
        "OLLAMA_SKIP_WARMUP": ("warm-up", "1"),
        "OLLAMA_SKIP_MMPROJ": ("projector", "1"),
        "OLLAMA_LOAD_POLL_MS": ("poll", "20"),
        "OLLAMA_LLM_LIBRARY": ("backend", "cuda_v12"),
        "OLLAMA_DISCOVER_ONCE": ("backend", "1"),
        "OLLAMA_CACHE_IS_FREE": ("landing", "1"),
    }
    for variable, (first, value) in given.items():
        told = [seen[name].get(variable) for name in which]
        place = which.index(first)
        assert told == [None] * place + [value] * (len(which) - place), variable
    hydrated = [json.loads(line) for line in (out / "10-jit-warm-1.jsonl").read_text().splitlines()]
    (finished,) = [record for record in hydrated if record["event"] == "hydrate.finished"]
    assert finished["done"]
    assert finished["files"] > 1


@pytest.mark.usefixtures("_a_gpu")
def test_kernels_are_there_on_the_warm_rung_only(image: Image, models: Path) -> None:
    assert report.run(Options(runs=2, models=models, which=("landing", "jit-cold", "jit-warm"))) == 0
    first, filling, *starts = [int(seen["KERNELS"]) for seen in image.starts()]
    assert (first, filling) == (0, 0)
    cold, warm = starts[0::2], starts[1::2]
    assert cold == [0, 0]
    assert min(warm) > 1


def test_a_start_that_fails_is_told_and_the_others_are_measured(
    image: Image, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = image.program.read_text()
    # The first rung asks for a job only; the others ask for a load first, which this server refuses.
    image.program.write_text(text.replace("FAKE_COMPILED", "FAKE_LOAD_ERROR='no such magic' FAKE_COMPILED"))
    out = tmp_path / "out"
    assert report.run(Options(runs=1, out=out, models=models, which=("structure",))) == 1
    (row,) = kept(out)["rungs"]
    assert "no such magic" in row["not_run"]
    assert "not run: no run came to a first chunk: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (Options(which=("stock", "sideways")), 2, "not sideways"),
        (Options(runs=0), 2, "--runs is below 1"),
        (Options(models=Path("/nonexistent")), 1, "it has no model"),
        (Options(model="absent:1b", models=Path("/nonexistent")), 1, "'absent:1b' is not in the store"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    options: Options, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.run(options) == code
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("not run: ")
    assert words in sentence


def test_a_machine_that_cannot_slow_a_store_down_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert report.run(Options(latency_us=1000)) == 1
    assert re.fullmatch(r"not run: (umount not installed|/dev/fuse cannot be used here)\n", capsys.readouterr().err)


def test_the_command_repeats_what_was_asked_without_this_machines_paths(tmp_path: Path) -> None:
    options = Options(
        runs=2,
        models=tmp_path,
        model="m:1b",
        landing_dir=tmp_path,
        latency_us=2000,
        cold=True,
        jit="mirror",
        backend="cuda_v13",
    )
    assert options.command == (
        "python -m worker bench cold-start --runs 2 --models DIR --model m:1b --landing-dir DIR "
        "--volume-latency-us 2000 --cold --jit mirror --backend cuda_v13"
    )
