"""The queue against releases of a small upstream: what fits, and where an anchor went when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from worker.patches.fit import check_source, same_sources
from worker.patches.queue import Problem, load_queue
from worker.patches.source import Source

if TYPE_CHECKING:
    from tests.unit.patches.conftest import Upstream

SERVER, RUNNER = "llm/llama_server.go", "discover/runner.go"
EXEC = "cmd = exec.Command(exe, params...)"


def problems(upstream: Upstream, source: Path | None = None) -> list[Problem]:
    return check_source(load_queue(upstream.queue_dir), source or upstream.path)


def test_the_projects_queue_fits_a_source_that_has_its_anchors(released: Upstream) -> None:
    assert problems(released) == []


def test_releases_with_the_same_files_are_tried_once(released: Upstream) -> None:
    released.release("v0.32.1", {"README": "changed\n"})
    released.release("v0.33.0-rc0", {SERVER: "// moved\n" + released.files()[SERVER]})
    groups = same_sources(load_queue(released.queue_dir), Source(released.path))
    assert [[release.tag for release in group] for group in groups] == [["v0.32.0", "v0.32.1"], ["v0.33.0-rc0"]]
    assert groups[0][0].commit == released.git("rev-parse", "v0.32.0")


def test_a_release_before_the_oldest_is_not_our_concern(upstream: Upstream) -> None:
    upstream.release("v0.29.9", {SERVER: "package llm\n", RUNNER: "package discover\n"})
    upstream.pin("v0.32.0", upstream.release("v0.32.0", upstream.files()))
    assert problems(upstream) == []


def test_an_anchor_that_moved_to_another_file_is_found_there(released: Upstream) -> None:
    files = released.files()
    moved = "package llm\n\nfunc start() {\n\t// Set up\n\t" + EXEC + "\n}\n"
    released.release("v0.34.0", {SERVER: files[SERVER].replace(EXEC, "cmd := start()"), "llm/start.go": moved})
    (problem,) = problems(released)
    assert (problem.rule, problem.where) == ("fit", "0001-skip-warmup.patch")
    assert f"v0.34.0: hunk 1 of {SERVER} does not fit: its lines are gone" in problem.what
    assert f"'{EXEC}' stands at llm/start.go:5" in problem.what
    assert problem.fix.startswith(f"git -C {released.path} worktree add --detach")
    assert "v0.34.0" in problem.fix
    assert "python -m worker patches refresh 0001-skip-warmup.patch" in problem.fix


def test_an_anchor_that_was_reworded_is_shown_beside_its_closest_line(released: Upstream) -> None:
    reworded = "cmd = exec.CommandContext(ctx, exe, params...)"
    text = released.files()[SERVER].replace(EXEC, reworded)
    released.release("v0.34.0", {SERVER: text})
    (problem,) = problems(released)
    number = next(n for n, line in enumerate(text.splitlines(), 1) if reworded in line)
    assert f"closest is {SERVER}:{number}: '{reworded}'" in problem.what


def test_a_line_that_is_still_there_is_shown_where_it_stands(released: Upstream) -> None:
    text = released.files()[SERVER].replace("// Set up library paths for GPU", "// Find the paths for GPU")
    released.release("v0.34.0", {SERVER: text})
    (problem,) = problems(released)
    number = next(n for n, line in enumerate(text.splitlines(), 1) if EXEC in line)
    assert f"'{EXEC}' stands at {SERVER}:{number}" in problem.what
    assert f"is gone, closest is {SERVER}:{number - 1}: '// Find the paths for GPU" in problem.what


def test_every_patch_that_does_not_fit_is_reported(released: Upstream) -> None:
    touched = {path for patch in load_queue(released.queue_dir).in_order for path in patch.paths}
    released.release("v0.34.0", {path: f"package {path.partition('/')[0]}\n" for path in touched})
    found = problems(released)
    assert [p.where for p in found] == list(load_queue(released.queue_dir).series)
    assert all("nothing like it is left" in p.what for p in found)


def test_releases_that_fail_alike_are_one_problem_told_of_the_newest(released: Upstream) -> None:
    text = released.files()[SERVER].replace(EXEC, "start()")
    released.release("v0.34.0", {SERVER: text})
    released.release("v0.34.10", {SERVER: text + "// other file, same fault\n", "llm/start.go": "// " + EXEC + "\n"})
    released.release("v0.34.2", {"README": "changed\n"})
    (problem,) = problems(released)
    assert problem.what.startswith("v0.34.10 and 2 more, from v0.34.0: ")
    assert f"'{EXEC}' stands at llm/start.go:1" in problem.what


def test_a_file_of_ours_that_upstream_has_too_is_a_problem(released: Upstream) -> None:
    released.release("v0.34.0", {"llm/coldstart_poll.go": "package llm\n"})
    (problem,) = problems(released)
    assert (problem.rule, problem.where) == ("overlay", "llm/coldstart_poll.go")


def test_a_tag_that_was_moved_is_a_problem(released: Upstream) -> None:
    commit = released.git("rev-parse", "v0.32.0")
    released.pin("v0.32.0", "0" * 40)
    (problem,) = problems(released)
    assert (problem.rule, problem.where) == ("pin", "UPSTREAM")
    assert problem.fix == f"OLLAMA_COMMIT={commit}"


def test_a_source_without_the_pin_is_a_problem(released: Upstream) -> None:
    released.pin("v0.32.9", "0" * 40)
    (problem,) = problems(released)
    assert "has neither v0.32.9 nor its commit" in problem.what
    assert "fetch origin tag v0.32.9" in problem.fix


def test_a_clone_without_tags_is_tried_at_the_pinned_commit(upstream: Upstream, tmp_path: Path) -> None:
    good = upstream.release("v0.32.0", upstream.files())
    bad = upstream.release("v0.32.1", {SERVER: upstream.files()[SERVER].replace(EXEC, "start()")})
    upstream.git("clone", "--quiet", "--no-tags", str(upstream.path), str(tmp_path / "clone"))
    upstream.pin("v0.32.0", good)
    assert problems(upstream, tmp_path / "clone") == []
    upstream.pin("v0.32.1", bad)
    (problem,) = problems(upstream, tmp_path / "clone")
    assert problem.what.startswith(f"{bad[:12]}: hunk 1")
