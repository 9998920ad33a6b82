"""What is kept of the runs of a cold start: every figure, every failure, and nothing of an older bench."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.cold_start import report, store
from bench.cold_start.options import Options
from bench.cold_start.rungs import RUNGS, Step
from bench.cold_start.runs import Measured
from bench.first_chunk import Speeds, Start
from tests.conftest import MODEL
from worker.__main__ import main
from worker.local.engine.store import register_gguf
from worker.storage import cached_share, place

ANSWERED = '{"at_ns":2,"seq":2,"event":"server.answered","version":"0.32.15"}'


def started(*seconds: float, speeds: Speeds | None = None, lines: list[str] | None = None) -> list[Start]:
    return [Start(first_s, lines or [], speeds) for first_s in seconds]


def step(number: int, obstacle: str = "", **settings: str) -> Step:
    return Step(RUNGS[number - 1], number, settings, ("OLLAMA_VULKAN",), obstacle)


def row(measured: Measured) -> dict[str, Any]:
    return report._row(measured)


def test_a_rung_has_every_run_and_their_spread() -> None:
    found = row(Measured(step(2), started(1.5, 1.0, 3.25, speeds=Speeds(300.0, 70.0)), ["late"]))
    assert found["first_chunk"] == {"median_s": 1.5, "min_s": 1.0, "max_s": 3.25}
    assert found["runs_s"] == [1.5, 1.0, 3.25]
    assert found["failed"] == ["late"]
    assert found["decode_tokens_per_s"] == {"median": 70.0, "min": 70.0, "max": 70.0}
    assert (found["number"], found["rung"], found["withheld"]) == (2, "structure", ["OLLAMA_VULKAN"])


def test_a_rung_without_speeds_has_none_and_one_without_runs_says_why() -> None:
    assert "decode_tokens_per_s" not in row(Measured(step(2), started(1.0)))
    assert row(Measured(step(4, "no projector")))["not_run"] == "no projector"
    failed = row(Measured(step(2), [], ["first", "x" * 500]))
    assert failed["not_run"].startswith("no run came to a first chunk: xxx")
    assert len(failed["not_run"]) < 300


def test_folders_of_this_machine_are_not_shown() -> None:
    found = row(Measured(step(8, WORKER_LANDING_DIR="/mnt/fast", WORKER_LANDING="1"), started(1.0)))
    assert found["settings"] == {"WORKER_LANDING_DIR": "DIR", "WORKER_LANDING": "1"}


def test_the_servers_name_has_the_version_it_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_BIN", "/usr/bin/ollama")
    assert report._server(started(1.0, 2.0, lines=["noise", ANSWERED])) == "ollama 0.32.15"
    assert report._server(started(1.0)) == "ollama"
    monkeypatch.delenv("OLLAMA_BIN")
    assert report._server(started(1.0)) == "local engine"


@pytest.fixture
def kept(tmp_path: Path, store_home: Path) -> Path:
    """A folder with the result of two rungs, over what an older bench with more runs left there."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("2-structure-1.jsonl", "2-structure-9.jsonl", "notes.jsonl"):
        (out / name).write_text("old\n")
    all_measured = [Measured(step(1), started(2.0, 2.5)), Measured(step(2), started(1.0, lines=[ANSWERED]))]
    with store.opened(tmp_path, store_home / "models", MODEL) as found:
        result = report._result(Options(runs=2), found, all_measured)
    report._keep(out, tmp_path, result, all_measured)
    return out


def test_what_is_kept_replaces_what_an_older_bench_left(kept: Path) -> None:
    streams = {path.name: path.read_text() for path in kept.glob("*.jsonl")}
    assert set(streams) == {"1-stock-1.jsonl", "1-stock-2.jsonl", "2-structure-1.jsonl", "notes.jsonl"}
    assert json.loads(streams["1-stock-2.jsonl"]) == {"first_chunk_s": 2.5}
    assert streams["2-structure-1.jsonl"] == ANSWERED + "\n"
    assert streams["notes.jsonl"] == "old\n"


def test_the_result_says_where_it_was_taken(kept: Path) -> None:
    result = json.loads((kept / "cold-start.json").read_text())
    assert (result["model"], result["runs"], result["page_cache"]) == (MODEL, 2, "warm")
    assert f"{os.cpu_count()} cores" in result["machine"]
    assert result["on_gpu"] is ("no NVIDIA device" not in result["machine"])
    assert [row["number"] for row in result["rungs"]] == [1, 2]


def test_a_model_is_taken_out_of_the_page_cache(tmp_path: Path) -> None:
    if place(tmp_path).in_memory:
        pytest.skip("this folder is the page cache")
    with store.opened(tmp_path, None, "") as small:
        model = small.model.layer("model")
        assert model is not None
        # A file of its own: the package's is mapped by whoever runs the engine now.
        copy = tmp_path / "copy.gguf"
        copy.write_bytes(model.path(small.models).read_bytes())
    register_gguf(tmp_path / "own", "own:1b", copy)
    with store.opened(tmp_path, tmp_path / "own", "") as own:
        os.sync()
        assert cached_share(copy) > 0.9
        own.forget()
        assert cached_share(copy) < 0.1


def test_the_command_line_reaches_the_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cold-start", "--rungs", "sideways"]) == 2
    assert "not sideways" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "cold-start", "--jit", "sometimes"])
