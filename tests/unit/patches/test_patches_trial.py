"""A series fits when both tools put every hunk at its one exact place, in order and alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.patches import trial
from worker.patches.queue import Queue, load_queue
from worker.patches.trial import Misfit, try_series

if TYPE_CHECKING:
    from tests.unit.patches.conftest import Upstream

PATH = "llm/server.go"
TEXT = "package llm\n\none\ntwo\nthree\nfour\nfive\nsix\nseven\n"


def patch(*hunks: str) -> str:
    return f"Description: x\n---\n--- a/{PATH}\n+++ b/{PATH}\n" + "".join(hunks)


def queue_of(directory: Path, **patches: str) -> Queue:
    directory.mkdir()
    for name, text in patches.items():
        (directory / f"{name}.patch").write_text(text)
    (directory / "series").write_text("".join(f"{name}.patch\n" for name in patches))
    return load_queue(directory)


def misfits(queue: Queue, text: str = TEXT) -> list[Misfit]:
    return try_series(queue.in_order, queue.directory, {PATH: text})


TWO = "@@ -3,3 +3,3 @@\n one\n-two\n+TWO\n three\n"
FIVE = "@@ -6,3 +6,4 @@\n four\n-five\n+FIVE\n+and more\n six\n"


def test_hunks_that_fit_are_no_misfit_wherever_they_moved(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", a=patch(TWO, FIVE))
    assert misfits(queue) == []
    assert misfits(queue, "// new line\n" * 300 + TEXT) == []


def test_fuzz_is_not_accepted(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", a=patch(TWO, FIVE))
    found = misfits(queue, TEXT.replace("six", "6"))
    assert [(m.patch, m.said) for m in found] == [("a.patch", "its lines are gone")]
    assert found[0].hunk == queue.patches["a.patch"].hunks[1]


def test_a_hunk_with_two_places_is_a_misfit_although_the_tools_take_one(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", a=patch(TWO))
    found = misfits(queue, TEXT + "one\ntwo\nthree\n")
    assert [m.said for m in found] == ["its lines stand in 2 places (lines 3, 10)"]


def test_a_missing_file_is_a_misfit(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", a=patch(TWO))
    found = try_series(queue.in_order, queue.directory, {"llm/other.go": TEXT})
    assert [m.said for m in found] == [f"{PATH} does not exist"]


def test_a_patch_that_needs_another_cannot_be_dropped_alone_so_it_fails(tmp_path: Path) -> None:
    second = "@@ -3,3 +3,3 @@\n one\n-TWO\n+2\n three\n"
    queue = queue_of(tmp_path / "q", a=patch(TWO), b=patch(second))
    assert [m.patch for m in misfits(queue)] == ["b.patch"]


def test_patches_that_fit_alone_but_not_in_order_fail(tmp_path: Path) -> None:
    other = "@@ -4,3 +4,3 @@\n two\n-three\n+THREE\n four\n"
    found = misfits(queue_of(tmp_path / "q", a=patch(TWO), b=patch(other)))
    assert [m.patch for m in found] == ["b.patch"]
    assert found[0].hunk is None
    assert found[0].said.startswith("patch -F0: ")


def test_a_hunk_without_context_fits_anywhere_so_nowhere(tmp_path: Path) -> None:
    (misfit,) = misfits(queue_of(tmp_path / "q", a=patch("@@ -9,0 +9,1 @@\n+end\n")))
    assert "its lines stand in 10 places" in misfit.said


def test_the_tools_have_to_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        trial._TOOLS, "git apply", ["sh", "-c", "cat >server.log"]
    )  # a tool that says yes and does nothing
    (misfit,) = misfits(queue_of(tmp_path / "q", a=patch(TWO)))
    assert misfit.said == "patch -F0 and git apply put it in different places"


def test_what_a_tool_says_about_a_damaged_patch_is_kept(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", a=patch(TWO))
    (queue.directory / "a.patch").write_text(patch(TWO.replace("@@ -3,3 +3,3 @@", "@@ -3,3 +3,9 @@")))
    assert [m.said.split(":")[0] for m in misfits(queue)] == ["patch -F0"]


def test_a_repository_around_the_scratch_directory_changes_nothing(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.release("v0.30.0", {"x.go": "package x\n"})
    monkeypatch.setattr("tempfile.tempdir", str(upstream.path))
    # Inside a repository git takes paths from its root and skips, with success, what lies outside.
    assert misfits(queue_of(tmp_path / "q", a=patch(TWO))) == []
    assert upstream.git("status", "--porcelain") == ""
