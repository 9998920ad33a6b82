from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.image import bases, engine
from tests.image.container import Container, worker_environ
from worker.local.engine.store import register_gguf, smollm2_gguf

# These tests build images for minutes: `make image-test` runs them, `make test` does not.
collect_ignore_glob = [] if os.environ.get("IMAGE_TEST") else ["test_*.py"]
MODEL = "smollm2:135m"
COPIED = ("Dockerfile", ".dockerignore", "handler.py", "start.sh", "worker", "requirements", "patches")


def _unable() -> str:
    source = os.environ.get("OLLAMA_SRC", "")
    if not (Path(source) / "go.mod").is_file():
        return "name Ollama's source of the release in patches/UPSTREAM, as in make image-test OLLAMA_SRC=/path"
    if shutil.which("go") is None:
        return "the stand-in for golang is made from this machine's Go, and there is none"
    return engine.missing()


def pytest_configure() -> None:
    """Refuse a run that was asked for and cannot be: tests that are all skipped would look as if they had passed."""
    if os.environ.get("IMAGE_TEST") and (reason := _unable()):
        raise pytest.UsageError(f"the image was not tested: {reason}")


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Engine]:
    """A running engine with stand-ins for every base image."""
    shared = [tmp_path_factory.getbasetemp(), Path(os.environ["OLLAMA_SRC"]).resolve(), bases.go_root()]
    with engine.Engine(shared) as running:
        bases.make(running, tmp_path_factory.mktemp("bases"))
        yield running
        running.docker("image", "prune", "--force")  # what this run's builds took the names from


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what `docker build .` would see."""
    copy = tmp_path_factory.mktemp("context")
    for name in COPIED:
        source = bases.ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
        else:
            shutil.copy2(source, copy / name)
    return copy


Build = Callable[..., str]


@pytest.fixture(scope="session")
def build(docker: engine.Engine) -> Build:
    """Build a context with the unmodified Dockerfile, name the image and return BuildKit's log."""

    def _build(context: Path, name: str, *options: str) -> str:
        source = f"--build-context=ollama-src={Path(os.environ['OLLAMA_SRC']).resolve()}"
        command = ("build", "--progress=plain", "--network=host", "-t", name, source, *options, str(context))
        return docker.docker(*command, timeout_s=1500.0).stderr

    return _build


@pytest.fixture(scope="session")
def image(build: Build, context: Path) -> str:
    """The image, built with the Dockerfile's defaults: upstream's tests run."""
    build(context, "worker:test")
    return "worker:test"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store that a container can mount: with a file, not a link to one."""
    home = tmp_path_factory.mktemp("store")
    gguf = Path(shutil.copy(smollm2_gguf(), home / "model.gguf"))
    register_gguf(home / "models", MODEL, gguf)
    return home / "models"


Run = Callable[..., Container]


@pytest.fixture
def run(docker: engine.Engine, image: str, store: Path) -> Run:
    """Prepare a container with the small model on the CPU; a worker of its queue unless `arguments` say what to do."""

    def _run(*options: str, arguments: tuple[str, ...] = (), **environ: str) -> Container:
        defaults = {"OLLAMA_MODEL": MODEL, "OLLAMA_MODELS": "/models", "WORKER_ALLOW_CPU": "1"}
        platform = {} if arguments else worker_environ()
        options = (f"--volume={store}:/models", *options)
        return Container(docker, image, {**platform, **defaults, **environ}, options=options, arguments=arguments)

    return _run
