"""The project's queue against upstream's real source: OLLAMA_SRC names a checkout or a bare repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from worker.patches.command import QUEUE, main
from worker.patches.fit import check_source, same_sources
from worker.patches.overlay import go_binary
from worker.patches.queue import load_queue
from worker.patches.source import Source

SOURCE = Path(os.environ.get("OLLAMA_SRC") or "/nonexistent")

pytestmark = [
    pytest.mark.source,
    pytest.mark.skipif(not SOURCE.is_dir(), reason="OLLAMA_SRC names no source of Ollama"),
]


@pytest.fixture
def queue_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(QUEUE, tmp_path / "patches"))


def test_the_queue_fits_every_release_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--source", str(SOURCE)]) == 0, capsys.readouterr().out
    assert "fit" in capsys.readouterr().out


def test_the_pin_is_among_what_was_tried() -> None:
    queue = load_queue(QUEUE)
    tried = [release.commit for group in same_sources(queue, Source(SOURCE)) for release in group]
    assert queue.upstream["OLLAMA_COMMIT"] in tried


def test_an_anchor_upstream_never_had_is_noticed_in_every_release(queue_dir: Path) -> None:
    name = load_queue(queue_dir).series[0]
    hunk = load_queue(queue_dir).patches[name].hunks[0]
    anchor = max(hunk.before, key=len)
    text = (queue_dir / name).read_text()
    (queue_dir / name).write_text(text.replace(anchor, f"{anchor} // reworded", 1))
    queue = load_queue(queue_dir)
    releases = [release for group in same_sources(queue, Source(SOURCE)) for release in group]
    (problem,) = check_source(queue, SOURCE)
    assert (problem.rule, problem.where) == ("fit", name)
    assert f" and {len(releases) - 1} more" in problem.what or len(releases) == 1
    assert f"// reworded' is gone, closest is {hunk.path}:" in problem.what


def test_what_apply_leaves_behind_is_formatted_go(queue_dir: Path, tmp_path: Path) -> None:
    queue, source = load_queue(queue_dir), Source(SOURCE)
    commit = queue.upstream["OLLAMA_COMMIT"]
    touched = sorted({path for patch in queue.in_order for path in patch.paths})
    tree = tmp_path / "tree"
    for path, blob in source.objects(commit, ["go.mod", *touched]).items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(source.text(blob))
    subprocess.run([str(queue_dir / "apply.sh"), str(tree)], check=True, capture_output=True, timeout=60)
    gofmt = go_binary("gofmt")
    assert gofmt is not None
    done = subprocess.run([str(gofmt), "-l", str(tree)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
