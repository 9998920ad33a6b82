"""apply.sh, as the image build runs it: everything goes in exactly, or it ends with an error that names the patch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.patches.queue import load_queue

if TYPE_CHECKING:
    from tests.unit.patches.conftest import Upstream

SERVER = "llm/llama_server.go"


@pytest.fixture
def tree(tmp_path: Path, upstream: Upstream) -> Path:
    """Upstream's files as a download has them: no repository."""
    upstream.write(upstream.files())
    shutil.rmtree(upstream.path / ".git")
    return Path(shutil.move(upstream.path, tmp_path / "source tree"))


def apply(queue_dir: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path or os.environ["PATH"]}
    argv = [str(queue_dir / "apply.sh"), *arguments]
    return subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)


def path_without(tmp_path: Path, *missing: str) -> str:
    """A PATH with the tools apply.sh uses, save the missing ones."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in {"sh", "dirname", "cp", "git", "patch"} - set(missing):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    return str(tools)


@pytest.mark.parametrize("missing", [(), ("patch",), ("git",)], ids=["both tools", "git alone", "patch alone"])
def test_every_call_site_and_every_overlay_file_arrives(
    queue_dir: Path, tree: Path, tmp_path: Path, missing: tuple[str, ...]
) -> None:
    done = apply(queue_dir, str(tree), path=path_without(tmp_path, *missing))
    assert done.returncode == 0, done.stdout + done.stderr
    queue = load_queue(queue_dir)
    for patch in queue.in_order:
        for hunk in patch.hunks:
            assert set(hunk.added) <= set((tree / hunk.path).read_text().splitlines())
    for path in queue.shipped:
        assert (tree / path).read_text() == queue.overlay[path]
    arrived = {p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file()}
    touched = {path for patch in queue.in_order for path in patch.paths}
    assert SERVER in touched
    assert arrived == {"go.mod", *touched, *queue.shipped}
    assert (tree / "go.mod").read_text() == "module github.com/ollama/ollama\n"


def test_a_repository_around_the_tree_does_not_swallow_the_patches(
    queue_dir: Path, tree: Path, tmp_path: Path, upstream: Upstream
) -> None:
    upstream.path.mkdir()
    upstream.git("init", "--quiet")
    inside = Path(shutil.move(tree, upstream.path / "vendor"))
    assert apply(queue_dir, str(inside), path=path_without(tmp_path, "patch")).returncode == 0
    assert "coldStartWarmup(" in (inside / SERVER).read_text()


@pytest.mark.parametrize("missing", [(), ("patch",)], ids=["patch", "git"])
def test_a_patch_that_would_need_fuzz_ends_it(
    queue_dir: Path, tree: Path, tmp_path: Path, missing: tuple[str, ...]
) -> None:
    text = (tree / SERVER).read_text()
    (tree / SERVER).write_text(text.replace("// Set up library paths", "// Set up paths"))
    done = apply(queue_dir, str(tree), path=path_without(tmp_path, *missing))
    assert done.returncode != 0
    assert "apply.sh: 0001-skip-warmup.patch does not apply" in done.stderr
    assert not (tree / "llm" / "coldstart_warmup.go").exists()


def test_a_second_run_ends_with_an_error(queue_dir: Path, tree: Path) -> None:
    assert apply(queue_dir, str(tree)).returncode == 0
    once = (tree / SERVER).read_text()
    assert apply(queue_dir, str(tree)).returncode != 0
    assert (tree / SERVER).read_text() == once


def test_a_file_of_upstream_is_never_overwritten(queue_dir: Path, tree: Path) -> None:
    (tree / "llm" / "coldstart_poll.go").write_text("package llm // upstream's\n")
    done = apply(queue_dir, str(tree))
    assert done.returncode != 0
    assert "llm/coldstart_poll.go exists in this source already" in done.stderr
    assert "upstream's" in (tree / "llm" / "coldstart_poll.go").read_text()


def test_a_package_upstream_does_not_have_is_an_error(queue_dir: Path, tree: Path) -> None:
    (queue_dir / "overlay" / "gone").mkdir()
    (queue_dir / "overlay" / "gone" / "x.go").write_text("package gone\n")
    done = apply(queue_dir, str(tree))
    assert done.returncode != 0
    assert "gone/x.go belongs to a package this source does not have" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("/nowhere",), ("/", "/")])
def test_a_wrong_call_says_what_is_wrong(queue_dir: Path, arguments: tuple[str, ...]) -> None:
    done = apply(queue_dir, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("apply.sh: ")
