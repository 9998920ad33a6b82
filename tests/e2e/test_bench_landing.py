"""The landing bench in miniature: what it measures is real, and what it keeps names no machine."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from bench import landing, random_gguf
from bench.programs import Unavailable, require

LAYER = random_gguf.LAYER_BYTES


def test_the_bench_measures_both_ways_and_keeps_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    out = tmp_path / "results"
    assert landing.run(out, size_bytes=LAYER, rounds=2, which=("disk",)) == 0
    assert "local disk" in capsys.readouterr().out
    (kept,) = out.iterdir()
    row = json.loads(kept.read_text())
    assert kept.name == "local-disk.json"
    assert row["file_bytes"] == pytest.approx(LAYER, rel=0.02)
    assert row["method"] == "in place"
    assert len(row["rounds"]) == 2
    assert row["ratio"] == pytest.approx(row["llama_alone_s"] / row["worker_s"], abs=0.01)
    assert str(tmp_path) not in kept.read_text()
    assert list(tmp_path.iterdir()) == [out]


def test_the_random_model_is_loaded_by_the_real_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp", exc_type=ImportError)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    case = next(case for case in landing.CASES if case.name == "local disk, loaded by libllama")
    monkeypatch.setattr(landing, "CASES", (case,))
    landing.run(tmp_path / "results", size_bytes=LAYER, rounds=1, which=("libllama",))
    row = json.loads((tmp_path / "results" / "local-disk-loaded-by-libllama.json").read_text())
    assert row["llama_alone_s"] > 0


def test_a_machine_that_lacks_a_filesystem_says_which_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # Without programs nothing can be mounted; the measuring process itself is started by its full path.
    monkeypatch.setenv("PATH", str(tmp_path))
    assert landing.run(None, size_bytes=LAYER, rounds=1, which=("moosefs",)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("not run: mfsmaster" in line for line in lines)


def test_what_is_not_installed_is_named() -> None:
    require("sh")
    with pytest.raises(Unavailable, match=r"^no-such-program not installed$"):
        require("sh", "no-such-program")


def test_no_block_of_the_random_model_is_like_another(tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "model.gguf", LAYER)
    with path.open("rb") as file:
        head = file.read(4)
        blocks = [os.pread(file.fileno(), 64 << 10, at << 22) for at in range(1, 30)]
    assert head == b"GGUF"
    assert len(set(blocks)) == len(blocks)
