"""What a patched Ollama does, seen from the runner it starts: OLLAMA_BIN names the binary, no GPU is needed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path

import pytest
import requests

from tests.fakes.tiny_store import register

OLLAMA_BIN = Path(os.environ.get("OLLAMA_BIN") or "/nonexistent")
FAKE = Path(__file__).resolve().parents[1] / "fakes" / "cuda_runner.py"
LIBRARIES = {"cuda_v12": "libggml-cuda.so", "cuda_v13": "libggml-cuda.so", "vulkan": "libggml-vulkan.so"}
LIMIT_S = 60
PROBES_A_DEVICE = 3  # system, list, and Ollama's own gpu-discover

pytestmark = [
    pytest.mark.ollama,
    pytest.mark.skipif(not OLLAMA_BIN.is_file(), reason="OLLAMA_BIN names no Ollama"),
]


@pytest.fixture(scope="module")
def patched() -> Path:
    """The binary, when it carries the patches; they bring the names of their variables into it."""
    if b"OLLAMA_EXACT_NAMES" not in OLLAMA_BIN.read_bytes():
        pytest.skip("OLLAMA_BIN was built without the patches, or without the last of them")
    return OLLAMA_BIN


@pytest.fixture
def root(tmp_path: Path, patched: Path) -> Path:
    """An installation laid out as the stock image's: three library directories and a runner, ours."""
    library = tmp_path / "lib" / "ollama"
    for name, backend in LIBRARIES.items():
        (library / name).mkdir(parents=True)
        (library / name / backend).touch()
    runner = library / "llama-server"
    runner.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(FAKE))} "$@"\n')
    runner.chmod(0o755)
    (tmp_path / "bin").mkdir()
    shutil.copy(patched, tmp_path / "bin" / "ollama")  # a link would lead Ollama to the libraries of the original
    return tmp_path


class Server:
    """A running `ollama serve` and what its children noted."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.url = f"http://{address}"

    def load(self, model: str, keep_alive: int = -1) -> None:
        body = {"model": model, "keep_alive": keep_alive}
        requests.post(f"{self.url}/api/generate", json=body, timeout=LIMIT_S).raise_for_status()

    def unload(self, model: str) -> None:
        self.load(model, keep_alive=0)
        self.wait_until(lambda: not requests.get(f"{self.url}/api/ps", timeout=LIMIT_S).json()["models"])

    @staticmethod
    def wait_until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)

    def notes(self, kind: str) -> list[dict]:
        path = self.root / "runner.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [fact for fact in map(json.loads, lines) if fact["kind"] == kind]

    def native_probes(self) -> int:
        """Count the `ollama gpu-discover` children: the loader leaves a file for each program it initializes."""
        logs = [path.read_text(errors="replace") for path in (self.root / "loader").iterdir()]
        return sum(bool(re.search(r"initialize program: .*ollama$", log, re.MULTILINE)) for log in logs) - 1

    def probes(self) -> int:
        return len(self.notes("system")) + len(self.notes("list")) + self.native_probes()


@contextmanager
def serving(root: Path, groups: Path | None = None, **variables: str) -> Iterator[Server]:
    """Run `ollama serve`, with the folder `groups` in the place of /sys/fs/cgroup if one is given."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (root / "loader").mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "OLLAMA_HOST": address,
        "OLLAMA_MODELS": str(root / "models"),
        "OLLAMA_NOPRUNE": "1",
        "OLLAMA_NO_CLOUD": "1",
        "FAKE_RUNNER_LOG": str(root / "runner.jsonl"),
        "LD_DEBUG": "files",
        "LD_DEBUG_OUTPUT": str(root / "loader" / "log"),
        **variables,
    }
    with (root / "ollama.log").open("wb") as log:
        argv = [*(groups_of_its_own(groups) if groups else ()), str(root / "bin" / "ollama"), "serve"]
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    server = Server(root, address)
    try:
        server.wait_until(lambda: process.poll() is not None or answers(server.url))
        assert process.poll() is None, (root / "ollama.log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def groups_of_its_own(folder: Path) -> list[str]:
    """Return a command prefix that shows a program `folder` as its memory groups."""
    return ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /sys/fs/cgroup && exec "$@"', str(folder)]


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/api/version", timeout=LIMIT_S).ok
    except requests.ConnectionError:
        return False


def loaded_with(root: Path, model: str, groups: Path | None = None, **variables: str) -> tuple[list[str], str | None]:
    """Return the runner's arguments (without its port) and the padding of its fit."""
    (root / "runner.jsonl").unlink(missing_ok=True)
    with serving(root, groups, OLLAMA_LLM_LIBRARY="cuda_v12", **variables) as server:
        server.load(model)
        (note,) = server.notes("load")
    argv = note["argv"]
    del argv[argv.index("--port") : argv.index("--port") + 2]
    return argv, note["fit_target"]


def difference(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that went and those that came; what stayed kept its order."""
    went, came = [], []
    for _, start, end, start_after, end_after in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if before[start:end] != after[start_after:end_after]:
            went += before[start:end]
            came += after[start_after:end_after]
    return went, came


@pytest.mark.parametrize("inline", [False, True], ids=["separate projector", "inline projector"])
def test_each_variable_changes_exactly_its_own_flags(root: Path, *, inline: bool) -> None:
    register(root / "models", "tiny", inline=inline)
    plain, padding = loaded_with(root, "tiny")
    draft = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2", "--spec-draft-backend-sampling"]
    projector = ["--mmproj", plain[plain.index("--mmproj") + 1]]
    assert (projector[1] == plain[plain.index("--model") + 1]) == inline
    assert padding is not None

    def changes(**variables: str) -> tuple[list[str], list[str], str | None]:
        argv, fit_target = loaded_with(root, "tiny", **variables)
        return *difference(plain, argv), fit_target

    assert changes(OLLAMA_SKIP_WARMUP="1") == ([], ["--no-warmup"], padding)
    assert changes(OLLAMA_DISABLE_MTP="1") == (draft, [], padding)
    assert changes(OLLAMA_LOAD_POLL_MS="20", OLLAMA_DISCOVER_ONCE="1") == ([], [], padding)
    assert changes(OLLAMA_SKIP_MMPROJ="1") == (projector, [], None)


@pytest.mark.parametrize(
    ("variables", "before_http", "first_load"),
    [
        # Three directories and a second pass over the device of two of them; then the one that was chosen again.
        ({}, 5, 1),
        ({"OLLAMA_DISCOVER_ONCE": "1"}, 3, 0),
        ({"OLLAMA_LLM_LIBRARY": "cuda_v12"}, 2, 1),
        ({"OLLAMA_LLM_LIBRARY": "cuda_v12", "OLLAMA_DISCOVER_ONCE": "1"}, 1, 0),
    ],
    ids=["stock", "once", "one library", "one library once"],
)
def test_discovery_starts_no_process_it_learns_nothing_from(
    root: Path, variables: dict[str, str], before_http: int, first_load: int
) -> None:
    register(root / "models", "tiny", inline=False)
    with serving(root, **variables) as server:
        assert server.probes() == PROBES_A_DEVICE * before_http
        server.load("tiny")
        assert server.probes() == PROBES_A_DEVICE * (before_http + first_load)
        device = re.search(
            r'msg="inference compute".*library=(\w+) compute=([\d.]+)', (root / "ollama.log").read_text()
        )
        assert device
        assert device.groups() == ("CUDA", "9.0")


def test_free_memory_is_measured_again_once_a_runner_was_there(root: Path) -> None:
    register(root / "models", "tiny", inline=False)
    with serving(root, OLLAMA_LLM_LIBRARY="cuda_v12", OLLAMA_DISCOVER_ONCE="1") as server:
        server.load("tiny")
        before = server.probes()
        server.unload("tiny")
        server.load("tiny")
        assert server.probes() > before


def test_a_loading_runner_is_looked_at_as_often_as_asked(root: Path) -> None:
    register(root / "models", "tiny", inline=False)
    looks = {}
    for poll in ("", "20"):
        (root / "runner.jsonl").unlink(missing_ok=True)
        with serving(root, OLLAMA_LOAD_POLL_MS=poll, FAKE_RUNNER_LOAD_S="2") as server:
            server.load("tiny")
            looks[poll] = len(server.notes("health"))
    # Upstream's 250 ms fit 8 times into the 2 s of this load; a loaded machine only makes that fewer.
    assert looks[""] <= 10
    assert looks["20"] > 2 * looks[""]


def available_bytes() -> int:
    return int(re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024


@pytest.fixture
def full_of_cache(tmp_path: Path) -> Path:
    """A container of 32 GiB in which 30 GiB are page cache, as after reading a model ahead."""
    if subprocess.run([*groups_of_its_own(tmp_path), "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace cannot be made here, which takes root")
    # Upstream wants 8 GB beside the model, and ours promises no more than the machine has.
    if available_bytes() < 9e9:
        pytest.skip("this machine has less than 9 GB of memory available")
    groups = tmp_path / "groups"
    groups.mkdir()
    (groups / "memory.max").write_text(f"{32 << 30}\n")
    (groups / "memory.current").write_text(f"{31 << 30}\n")
    (groups / "memory.stat").write_text(f"anon {1 << 30}\nfile {30 << 30}\ninactive_file {30 << 30}\nactive_file 0\n")
    return groups


def test_a_model_in_the_page_cache_does_not_cost_it_mmap(root: Path, full_of_cache: Path) -> None:
    register(root / "models", "tiny", inline=False)
    plain, _ = loaded_with(root, "tiny")
    upstreams, _ = loaded_with(root, "tiny", full_of_cache)
    assert difference(plain, upstreams) == ([], ["--load-mode", "none"]), "upstream no longer gives up mmap: drop 0006"
    ours, _ = loaded_with(root, "tiny", full_of_cache, OLLAMA_CACHE_IS_FREE="1")
    assert difference(plain, ours) == ([], [])


def test_memory_that_is_used_for_other_things_costs_mmap_as_before(root: Path, full_of_cache: Path) -> None:
    register(root / "models", "tiny", inline=False)
    stat = full_of_cache / "memory.stat"
    stat.write_text(stat.read_text().replace("inactive_file", "inactive_anon"))
    argv, _ = loaded_with(root, "tiny", full_of_cache, OLLAMA_CACHE_IS_FREE="1")
    assert argv[argv.index("--load-mode") + 1] == "none"


@pytest.mark.parametrize(("value", "statuses"), [("1", {200}), ("", {200, 404})], ids=["set", "unset"])
def test_a_name_that_is_there_is_never_taken_for_another(root: Path, value: str, statuses: set[int]) -> None:
    for name, tag in (("one", "q8_0"), ("two", "Q8_0")):
        register(root / "models", name, inline=False)
        made = root / "models/manifests/registry.ollama.ai/library" / name / "latest"
        made.rename(made.with_name(tag))
    with serving(root, OLLAMA_EXACT_NAMES=value) as server:
        # Without the variable each answer is right by chance, one in two.
        found = [
            requests.post(f"{server.url}/api/show", json={"model": name}, timeout=LIMIT_S).status_code
            for name in ("one:q8_0", "two:Q8_0")
            for _ in range(30)
        ]
        assert set(found) == statuses
