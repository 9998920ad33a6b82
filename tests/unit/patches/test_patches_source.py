"""Upstream is read from git objects: a checkout, a bare repository and a linked work tree say the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.patches.source import Release, Source, SourceUnreadable, release_order

if TYPE_CHECKING:
    from tests.unit.patches.conftest import Upstream

TAGS = ["v0.9.9", "v0.30.0-rc3", "v0.30.0", "v0.30.2", "v0.30.10", "v0.32.1-rc0", "v0.32.1", "nightly", "v0.32.1-ci0"]


@pytest.fixture
def tagged(upstream: Upstream) -> dict[str, str]:
    return {tag: upstream.release(tag, {"llm/a.go": f"package llm // {tag}\n"}) for tag in TAGS}


def test_releases_are_sorted_by_number_and_start_at_the_oldest(upstream: Upstream, tagged: dict[str, str]) -> None:
    wanted = ["v0.30.0", "v0.30.2", "v0.30.10", "v0.32.1-rc0", "v0.32.1"]
    assert Source(upstream.path).releases("v0.30.0") == [Release(tag, tagged[tag]) for tag in wanted]


@pytest.mark.parametrize("tag", ["nightly", "v1.2", "v1.2.3-ci0", "1.2.3", "v1.2.3-rc1-extra"])
def test_other_tags_are_no_releases(tag: str) -> None:
    assert release_order(tag) is None


def test_an_annotated_tag_names_its_commit(upstream: Upstream) -> None:
    commit = upstream.release("v0.30.0", {"llm/a.go": "package llm\n"})
    upstream.git("tag", "--annotate", "--message", "release", "v0.30.1", commit)
    assert Source(upstream.path).releases("v0.30.1") == [Release("v0.30.1", commit)]


@pytest.mark.parametrize("kind", ["checkout", "inside", "bare", "linked"])
def test_every_kind_of_repository_reads_alike(upstream: Upstream, tmp_path: Path, kind: str) -> None:
    commit = upstream.release("v0.30.0", {"llm/a.go": "package llm\n// anchor [x]\n", "llm/b.txt": "// anchor [x]\n"})
    path = {"checkout": upstream.path, "inside": upstream.path / "llm"}.get(kind, tmp_path / kind)
    if kind == "bare":
        upstream.git("clone", "--quiet", "--bare", str(upstream.path), str(path))
    if kind == "linked":
        upstream.git("worktree", "add", "--quiet", "--detach", str(path), "v0.30.0")
    source = Source(path)
    objects = source.objects(commit, ["llm/a.go", "llm/none.go", "discover"])
    assert list(objects) == ["llm/a.go"]
    assert source.text(objects["llm/a.go"]) == "package llm\n// anchor [x]\n"
    assert source.places(commit, "anchor [x]") == [("llm/a.go", 2)]
    assert source.places(commit, "anchor x") == []
    assert source.has(commit)
    assert not source.has("0" * 40)


def test_the_work_tree_is_neither_read_nor_changed(upstream: Upstream) -> None:
    commit = upstream.release("v0.30.0", {"llm/a.go": "package llm\n"})
    upstream.write({"llm/a.go": "package edited\n", "llm/new.go": "package llm\n"})
    source = Source(upstream.path)
    assert source.text(source.objects(commit, ["llm/a.go"])["llm/a.go"]) == "package llm\n"
    assert list(source.objects(commit, ["llm/a.go", "llm/new.go"])) == ["llm/a.go"]
    assert (upstream.path / "llm/a.go").read_text() == "package edited\n"


def test_a_git_hooks_environment_does_not_redirect_it(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = upstream.release("v0.30.0", {"llm/a.go": "package llm\n"})
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert Source(upstream.path).releases("v0.30.0") == [Release("v0.30.0", commit)]


def test_no_repository_and_no_object_are_errors_that_name_the_path(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match=str(tmp_path / "missing")):
        Source(tmp_path / "missing")
    with pytest.raises(SourceUnreadable, match=str(upstream.path)):
        Source(upstream.path).text("0" * 40)
