"""What must hold of the Dockerfile before anything is built: pins, sources of truth, no pulled frontend."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from worker import __version__

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LINES = TEXT.splitlines()
HADOLINT = Path(sys.executable).with_name("hadolint")
UPSTREAM = dict(line.split("=", 1) for line in (ROOT / "patches/UPSTREAM").read_text(encoding="utf-8").split())


def arguments() -> dict[str, list[str]]:
    """Return the defaults of every ARG, one for each time it is declared with one."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'^ARG (\w+)="?([^"\n]*)"?$', TEXT, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def stages() -> dict[str, str]:
    """Return what each stage is made from."""
    return {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", TEXT, re.MULTILINE)}


def test_no_frontend_is_pulled() -> None:
    assert not [line for line in LINES if re.match(r"#\s*(syntax|escape|check)\s*=", line)]


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("OLLAMA_VERSION", UPSTREAM["OLLAMA_TAG"].removeprefix("v")),
        ("OLLAMA_COMMIT", UPSTREAM["OLLAMA_COMMIT"]),
        ("OLLAMA_REPOSITORY", UPSTREAM["OLLAMA_REPOSITORY"]),
        ("OLLAMA", "ollama/ollama:${OLLAMA_VERSION}"),
    ],
)
def test_upstream_is_the_one_the_patches_are_made_for(argument: str, expected: str) -> None:
    assert arguments()[argument] == [expected]


def test_every_stage_has_a_name_and_a_base_that_can_be_given_with_a_digest() -> None:
    given = {f"${{{name}}}" for name in ("DEBIAN", "GOLANG", "OLLAMA")}

    assert len(stages()) == sum(line.startswith("FROM ") for line in LINES)
    for base in stages().values():
        assert base in given | {"scratch"} | set(stages())


def test_every_base_image_has_an_exact_version() -> None:
    assert re.fullmatch(r"debian:trixie-\d{8}-slim", arguments()["DEBIAN"][0])
    assert re.fullmatch(r"golang:\d+\.\d+\.\d+-bookworm", arguments()["GOLANG"][0])
    assert re.fullmatch(r"\d+\.\d+\.\d+", arguments()["OLLAMA_VERSION"][0])


def test_the_compiler_is_new_enough_for_the_source_and_never_another_one_is_downloaded() -> None:
    overlay = re.search(r"^go (\d+)\.(\d+)", (ROOT / "patches/overlay/go.mod").read_text(), re.MULTILINE)
    golang = re.match(r"golang:(\d+)\.(\d+)", arguments()["GOLANG"][0])
    assert overlay
    assert golang

    assert tuple(map(int, golang.groups())) >= tuple(map(int, overlay.groups()))


def test_an_argument_of_two_stages_has_one_default() -> None:
    assert {name: defaults for name, defaults in arguments().items() if len(set(defaults)) > 1} == {}


def test_every_debian_package_has_a_version() -> None:
    installed = re.findall(r"apt-get install -y --no-install-recommends ((?:\"[^\"]+\" ?)+)", TEXT)

    assert TEXT.count("apt-get install") == len(installed) > 0
    for package in re.findall(r'"([^"]+)"', " ".join(installed)):
        assert re.fullmatch(r"[a-z0-9-]+=[0-9][0-9.]*[-*]\*?", package), package


def test_python_packages_are_the_locked_ones() -> None:
    (command,) = re.findall(r"pip (?:.|\\\n)*?worker\.txt", TEXT)

    for option in ("--require-hashes", "--no-deps", "--only-binary=:all:", "-r /tmp/worker.txt"):
        assert option in command


def test_go_is_built_the_way_upstream_builds_its_releases() -> None:
    (command,) = re.findall(r"go build (?:.|\\\n)*? \.$", TEXT, re.MULTILINE)

    for option in ("-trimpath", "-buildmode=pie", "-w -s", "version.Version=${OLLAMA_VERSION}", "server.mode=release"):
        assert option in command
    assert "ENV CGO_ENABLED=1" in LINES


def test_no_python_reaches_the_stage_that_compiles_go() -> None:
    stage = TEXT.split(" AS ollama-build\n")[1].split("\nFROM ")[0]

    assert re.findall(r"^COPY (.*)$", stage, re.MULTILINE) == ["--from=ollama-src / ./", "patches /patches"]


def test_the_label_tells_the_version_of_the_worker() -> None:
    assert f'org.opencontainers.image.version="{__version__}"' in TEXT


def test_everything_that_is_copied_is_let_into_the_context_and_nothing_else() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE)

    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {path for line in copied for path in line.split()}
    assert {"worker/local/engine", "worker/patches"} <= set(rules)


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed beside this Python")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
