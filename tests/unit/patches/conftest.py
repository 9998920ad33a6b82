"""A copy of the project's queue to break, and a small upstream made of the lines it looks for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from worker.patches.queue import load_queue
from worker.patches.source import clean_environment

PROJECT = Path(__file__).resolve().parents[3]


class Upstream:
    """A git repository with releases whose files hold every anchor of a queue."""

    def __init__(self, path: Path, queue_dir: Path) -> None:
        self.path = path
        self.queue_dir = queue_dir
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        argv = ["git", "-C", str(self.path), *identity, *arguments]
        done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def files(self) -> dict[str, str]:
        """Go-like files with filler between the places, so that every hunk has one place and can move."""
        made: dict[str, list[str]] = {"go.mod": ["module github.com/ollama/ollama"]}
        for patch in load_queue(self.queue_dir).in_order:
            for hunk in patch.hunks:
                lines = made.setdefault(hunk.path, ["package " + hunk.path.split("/")[0]])
                lines += [f"// filler {len(lines) + n}" for n in range(5)]
                lines += hunk.before
        return {path: "\n".join(lines) + "\n" for path, lines in made.items()}

    def write(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            (self.path / path).parent.mkdir(parents=True, exist_ok=True)
            (self.path / path).write_text(text)

    def release(self, tag: str, files: dict[str, str]) -> str:
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", tag)
        self.git("tag", tag)
        return self.git("rev-parse", "HEAD")

    def pin(self, tag: str, commit: str) -> None:
        """Make the queue's UPSTREAM name this repository's release."""
        settings = {**load_queue(self.queue_dir).upstream, "OLLAMA_TAG": tag, "OLLAMA_COMMIT": commit}
        lines = [f"{key}={value}\n" for key, value in settings.items()]
        (self.queue_dir / "UPSTREAM").write_text("".join(lines))


@pytest.fixture
def queue_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT / "patches", tmp_path / "patches"))


@pytest.fixture
def upstream(tmp_path: Path, queue_dir: Path) -> Upstream:
    path = tmp_path / "ollama"
    path.mkdir()
    return Upstream(path, queue_dir)


@pytest.fixture
def released(upstream: Upstream) -> Upstream:
    """An upstream with one release that fits, v0.32.0, pinned."""
    upstream.pin("v0.32.0", upstream.release("v0.32.0", upstream.files()))
    return upstream
