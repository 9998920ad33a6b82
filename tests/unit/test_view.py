"""What the server is shown: one store or another, from one moment to the next, and nothing in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.view import VARIABLE, View

LIMIT_S = 60.0
ABC, DEF = "sha256-abc", "sha256-def"
# Opens a file through the link as often as it can, until told to stop; tells what it saw, and how often.
READER = """
import collections, pathlib, select, sys
seen = collections.Counter()
path = pathlib.Path(sys.argv[1])
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        seen[path.read_text()] += 1
    except OSError as exc:
        seen[type(exc).__name__] += 1
print(*sorted(seen), seen.total() if hasattr(seen, "total") else sum(seen.values()))
"""


def store(root: Path, **blobs: str) -> Path:
    """Write a store whose one manifest is the name of the store."""
    manifest = root / "manifests" / "host" / "space" / "model" / "tag"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(root.name)
    (root / "blobs").mkdir()
    for name, content in blobs.items():
        (root / "blobs" / f"sha256-{name}").write_text(content)
    return root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return store(tmp_path / "first", abc="first abc")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return store(tmp_path / "second", abc="second abc", **{"def": "second def"})


@pytest.fixture
def view(home: Path, first: Path) -> View:
    return View(home / "store", first)


def shown(path: str) -> str:
    """Return which store the server sees at `path`."""
    return Path(path, "manifests", "host", "space", "model", "tag").read_text()


def test_the_server_is_given_a_link_that_leads_to_one_store_and_then_to_another(view: View, second: Path) -> None:
    (path,) = view.open().values()
    assert view.linked
    assert shown(path) == "first"
    view.show(second)
    assert shown(path) == "second"


def test_a_reader_never_finds_the_store_missing(view: View, home: Path, first: Path, second: Path) -> None:
    path = Path(view.open()[VARIABLE]) / "manifests" / "host" / "space" / "model" / "tag"
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        landed = home / "landed"
        for _ in range(400):
            view.show(second)
            view.show(first)
        for _ in range(100):
            # Dressed anew where it is dressed already.
            view.show(first)
            view.show_landed(second, {ABC: landed})
        said, _ = reader.communicate("\n", timeout=LIMIT_S)
    *saw, count = said.split()
    assert saw == ["first", "second"]
    assert int(count) > 100


def test_landed_files_take_the_place_of_their_blobs_and_no_other(view: View, home: Path, second: Path) -> None:
    (path,) = view.open().values()
    landed = home / "landed" / ABC
    landed.parent.mkdir()
    landed.write_text("landed abc")
    view.show_landed(second, {ABC: landed, "sha256-unknown": landed})
    assert shown(path) == "second"
    assert {blob.name: blob.read_text() for blob in Path(path, "blobs").iterdir()} == {
        ABC: "landed abc",
        DEF: "second def",
    }
    # The stores stay as they were.
    assert (second / "blobs" / ABC).read_text() == "second abc"


def test_a_store_that_is_not_there_yet_is_made_because_the_server_would_not(home: Path, tmp_path: Path) -> None:
    view = View(home / "store", tmp_path / "volume" / "models")
    (path,) = view.open().values()
    assert list(Path(path).iterdir()) == []
    assert (tmp_path / "volume" / "models").is_dir()


def test_what_killed_workers_left_goes_and_what_belongs_to_living_ones_stays(home: Path, first: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(LIMIT_S)
    living = os.getppid()
    home.mkdir()
    for pid in (gone.pid, living):
        (home / f"{pid}").symlink_to(first)
        (home / f"{pid}.new").symlink_to(first)
        (home / f"{pid}.landed" / "blobs").mkdir(parents=True)
        (home / f"{pid}.landed" / "blobs" / ABC).symlink_to(first / "blobs" / ABC)
    (home / "notes.txt").touch()
    View(home / "1x", first).open()
    kept = {"1x", "notes.txt", *(f"{living}{more}" for more in ("", ".new", ".landed"))}
    assert {entry.name for entry in home.iterdir()} == kept
    # What its links lead to is not its own.
    assert (first / "blobs" / ABC).read_text() == "first abc"


def test_a_relative_store_is_the_same_wherever_the_link_lies(
    home: Path, first: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(first.parent)
    view = View(home / "store", Path(first.name))
    (path,) = view.open().values()
    assert shown(path) == "first"
    view.show_landed(Path(second.name), {})
    assert shown(path) == "second"
    assert Path(path, "blobs", ABC).read_text() == "second abc"


@pytest.mark.parametrize("obstacle", ["home", "home/store"])
def test_where_no_link_can_be_made_the_server_gets_the_store_itself(
    obstacle: str, view: View, home: Path, first: Path, second: Path
) -> None:
    if obstacle == "home":
        home.write_text("a file where a folder should be")
    else:
        (home / "store").mkdir(parents=True)
    assert view.open() == {VARIABLE: str(first)}
    assert not view.linked
    # Nothing else can be shown then, and nothing is damaged by trying.
    view.show(second)
    view.close()
    assert shown(str(first)) == "first"
    assert home.is_file() or [entry.name for entry in home.iterdir()] == ["store"]


def test_a_store_that_cannot_be_read_is_an_error_and_what_was_shown_stays(view: View, tmp_path: Path) -> None:
    (path,) = view.open().values()
    with pytest.raises(OSError, match="No such file"):
        view.show_landed(tmp_path / "absent", {})
    assert shown(path) == "first"


@pytest.mark.parametrize("shown_last", ["show", "show_landed"])
def test_at_the_end_nothing_is_left_but_the_stores(
    shown_last: str, view: View, home: Path, first: Path, second: Path
) -> None:
    view.open()
    getattr(view, shown_last)(second, *([{}] if shown_last == "show_landed" else []))
    view.close()
    view.close()
    assert list(home.iterdir()) == []
    assert [shown(str(first)), shown(str(second))] == ["first", "second"]
