"""The command line: what it prints, how it exits, and a patch written anew from an edited tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.patches.command import QUEUE, main
from worker.patches.queue import load_queue

if TYPE_CHECKING:
    from tests.unit.patches.conftest import Upstream

SERVER = "llm/llama_server.go"
WARMUP = "0001-skip-warmup.patch"
EXEC = "cmd = exec.Command(exe, params...)"


@pytest.fixture(autouse=True)
def no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_SRC", raising=False)


def run(upstream: Upstream, *arguments: str) -> int:
    return main(["--queue", str(upstream.queue_dir), *arguments])


def test_the_projects_own_queue_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    assert capsys.readouterr().out == f"patches: {len(load_queue(QUEUE).patches)} patches are in order\n"


def test_a_source_is_named_by_option_or_environment(
    released: Upstream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(released, "check", "--source", str(released.path)) == 0
    by_option = capsys.readouterr().out
    monkeypatch.setenv("OLLAMA_SRC", str(released.path))
    assert run(released, "check") == 0
    assert by_option == capsys.readouterr().out
    assert "fit 1 revisions of upstream (1 different)" in by_option


def test_problems_are_lines_and_the_exit_status_is_one(released: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    with (released.queue_dir / "series").open("a") as series:
        series.write("0009-missing.patch\n")
    assert run(released, "check") == 1
    assert capsys.readouterr().out.splitlines() == [
        "series: 0009-missing.patch is listed but does not exist [series]",
        "patches: 1 problems",
    ]


def test_a_release_that_does_not_fit_fails_the_check(released: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    released.release("v0.34.0", {SERVER: released.files()[SERVER].replace(EXEC, "start()")})
    assert run(released, "check", "--source", str(released.path)) == 1
    out = capsys.readouterr().out
    assert f"{WARMUP}: v0.34.0: hunk 1 of {SERVER} does not fit" in out
    assert f"patches refresh {WARMUP}" in out


@pytest.mark.parametrize("missing", ["queue", "source", "patch", "tree"])
def test_what_is_missing_is_said_in_one_line(
    released: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    gone = str(tmp_path / "gone")
    status = {
        "queue": lambda: main(["--queue", gone, "check"]),
        "source": lambda: run(released, "check", "--source", gone),
        "patch": lambda: run(released, "refresh", "gone.patch", str(edited(released, "\tcmd = exec.Command(exe)"))),
        "tree": lambda: run(released, "refresh", WARMUP, gone),
    }[missing]()
    assert status == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "gone" in lines[0]


def edited(upstream: Upstream, line: str) -> Path:
    text = upstream.files()[SERVER]
    upstream.write({SERVER: text.replace("\t" + EXEC, line)})
    return upstream.path


def test_refresh_replaces_the_diff_and_keeps_the_header(released: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    files = released.files()
    moved = files[SERVER].replace("\t" + EXEC, "\tvar cmd *exec.Cmd\n\t" + EXEC)
    # git puts the nearest line that starts in the first column behind the second @@: `package llm` here.
    released.release("v0.34.0", {SERVER: moved.replace("\t// Set up library paths", "\t// Set up paths")})
    assert run(released, "check", "--source", str(released.path)) == 1
    released.write(
        {SERVER: (released.path / SERVER).read_text().replace("(exe, params", "(exe, coldStartWarmup(params)")}
    )
    header = (released.queue_dir / WARMUP).read_text().partition("---\n")[0]
    assert run(released, "refresh", WARMUP, str(released.path)) == 0
    text = (released.queue_dir / WARMUP).read_text()
    assert text.startswith(header + "---\n--- a/" + SERVER + "\n+++ b/" + SERVER + "\n@@ ")
    assert "package llm" not in text
    assert load_queue(released.queue_dir).patches[WARMUP].hunks[0].before[0] == "\tvar cmd *exec.Cmd"
    released.git("checkout", "--quiet", "--", ".")
    released.git("tag", "--delete", "v0.32.0")
    released.pin("v0.34.0", released.git("rev-parse", "HEAD"))
    capsys.readouterr()
    assert run(released, "check", "--source", str(released.path)) == 0


def test_refresh_of_an_unedited_tree_changes_nothing(released: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    before = (released.queue_dir / WARMUP).read_text()
    assert run(released, "refresh", WARMUP, str(released.path)) == 1
    assert "nothing was changed there" in capsys.readouterr().out
    assert (released.queue_dir / WARMUP).read_text() == before
