from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.image import bases
from tests.image.conftest import Build
from tests.image.engine import Engine
from worker import __version__
from worker.local.process import free_port, wait_for

pytestmark = pytest.mark.timeout(2400)
UPSTREAM = dict(line.split("=", 1) for line in (bases.ROOT / "patches/UPSTREAM").read_text().split())
_UNWANTED = (
    *("usr/bin/gcc", "usr/bin/pip", "usr/bin/pip3", "opt/venv/bin/pip", "usr/local/go"),
    *("app/patches", "app/worker/patches", "app/worker/local/engine", "app/worker/local/demo.py"),
)
_LOOK = """
import json, pathlib, platform, subprocess, sys, sysconfig
import worker, runpod, pydantic
root = pathlib.Path("/")
compiled = lambda module: pathlib.Path(module.__cached__).is_file()
print(json.dumps({
    "libraries": sorted(path.name for path in root.glob("usr/lib/ollama/*")),
    "places": [place for place in sys.argv[1:] if (root / place).exists()],
    "uncompiled": [module.__name__ for module in (json, worker, runpod, pydantic) if not compiled(module)],
    "glibc": platform.libc_ver()[1],
    "version": subprocess.run(["ollama", "--version"], capture_output=True, text=True).stdout,
    "python": sys.version_info[:2],
}))
"""


def in_image(docker: Engine, image: str, *command: str) -> str:
    entry, *arguments = command
    return docker.docker("run", "--rm", "--network=none", f"--entrypoint={entry}", image, *arguments).stdout


@pytest.fixture(scope="module")
def seen(docker: Engine, image: str) -> dict[str, Any]:
    return json.loads(in_image(docker, image, "python3", "-c", _LOOK, *_UNWANTED))


def test_of_upstreams_backends_only_the_chosen_one_is_in_the_image(seen: dict[str, Any]) -> None:
    assert {"llama-server", "libllama-server-impl.so", "cuda_v12"} <= set(seen["libraries"])
    assert not {name for name in seen["libraries"] if name.startswith(("cuda_v13", "vulkan", "mlx"))}


def test_nothing_that_builds_or_develops_is_in_the_image(seen: dict[str, Any]) -> None:
    assert seen["places"] == []


def test_nothing_is_compiled_to_bytecode_at_a_cold_start(seen: dict[str, Any]) -> None:
    assert seen["uncompiled"] == []


def test_the_c_library_is_new_enough_for_go_and_for_what_the_platform_injects(seen: dict[str, Any]) -> None:
    assert tuple(map(int, seen["glibc"].split("."))) >= (2, 36)


def test_the_patched_binary_calls_itself_by_upstreams_version(seen: dict[str, Any]) -> None:
    assert UPSTREAM["OLLAMA_TAG"].removeprefix("v") in seen["version"]


def test_the_image_says_how_it_is_started_and_stopped(docker: Engine, image: str) -> None:
    config = json.loads(docker.docker("image", "inspect", "--format", "{{json .Config}}", image).stdout)
    environ = dict(entry.split("=", 1) for entry in config["Env"])

    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "/app/start.sh"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert config["Labels"]["ollama.version"] == UPSTREAM["OLLAMA_TAG"].removeprefix("v")
    assert environ["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert environ["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
    assert environ["OLLAMA_MODELS"] == ""


def test_a_python_change_rebuilds_no_go_and_installs_nothing(build: Build, context: Path, tmp_path: Path) -> None:
    changed = changed_context(context, tmp_path)
    with (changed / "worker/__init__.py").open("a") as file:
        file.write(f"CHANGED_NS = {time.time_ns()}\n")

    log = build(changed, "worker:changed")

    cached = cached_steps(log)
    assert {"go build", "go test", "pip --python"} <= cached
    assert "compileall -q --invalidation-mode unchecked-hash worker" not in cached


def test_upstreams_tests_of_the_patched_packages_run_by_default_and_not_on_request(
    build: Build, context: Path, image: str, tmp_path: Path
) -> None:
    del image  # the first build has filled Go's caches
    changed = changed_context(context, tmp_path)
    # Steps run again after a change to the patches; --no-cache would throw Go's caches away as well.
    (changed / "patches/again").write_text(str(time.time_ns()))

    untested = build(changed, "go:untested", "--target=ollama-build", "--build-arg=RUN_UPSTREAM_TESTS=0")
    tested = build(changed, "go:tested", "--target=ollama-build")

    assert "github.com/ollama/ollama/llm" not in untested
    assert set(re.findall(r"ok\s+github.com/ollama/ollama/(\w+)", tested)) == {"llm", "discover", "ml", "server"}


def test_the_source_is_fetched_at_the_pinned_commit(docker: Engine, context: Path, tmp_path: Path) -> None:
    with git_server(tmp_path / "served") as (url, commits):
        for commit, content in commits.items():
            target = tmp_path / commit
            docker.docker(
                *("build", "--network=host", "--target=ollama-src", f"--output=type=local,dest={target}"),
                *(f"--build-arg=OLLAMA_REPOSITORY={url}", f"--build-arg=OLLAMA_COMMIT={commit}", str(context)),
            )
            assert {path.name: path.read_text() for path in target.iterdir()} == {"go.mod": content}


@contextlib.contextmanager
def git_server(directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Serve a repository of two commits; yield its URL, and what `go.mod` holds by commit."""
    repository = directory / "ollama"
    repository.mkdir(parents=True)
    git = (shutil.which("git") or "git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x@localhost")
    commits = {}
    subprocess.run([*git, "init", "-q"], check=True)
    # What GitHub allows: asking for a commit by its hash, reachable from a branch or not.
    subprocess.run([*git, "config", "uploadpack.allowAnySHA1InWant", "true"], check=True)
    for content in ("module first\n", "module second\n"):
        (repository / "go.mod").write_text(content)
        subprocess.run([*git, "add", "go.mod"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", content], check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        commits[head.stdout.strip()] = content
    port = free_port()
    place = ("--listen=127.0.0.1", f"--port={port}", f"--base-path={directory}", "--export-all", "--reuseaddr")
    server = subprocess.Popen([*git, "daemon", *place, str(directory)], start_new_session=True)
    try:
        assert wait_for(lambda: _listens(port))
        yield f"git://127.0.0.1:{port}/ollama", commits
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def changed_context(context: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(context, tmp_path / "changed"))


def cached_steps(log: str) -> set[str]:
    """Return which of these commands BuildKit took from its cache."""
    commands = ("go build", "go test", "pip --python", "compileall -q --invalidation-mode unchecked-hash worker")
    steps = {match[1]: match[2] for match in re.finditer(r"^#(\d+) (\[[^\n]*)$", log, re.MULTILINE)}
    heads = {number: step for number, step in steps.items() if re.search(rf"^#{number} CACHED$", log, re.MULTILINE)}
    return {command for command in commands if any(command in step for step in heads.values())}
