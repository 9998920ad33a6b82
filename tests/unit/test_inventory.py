"""The list of a directory's files: the same for the same content, and refused when it could leave the directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.inventory import Corrupt, Entry, Inventory, take

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def written(*paths: str, size_bytes: object = 0, about: object = None) -> bytes:
    entries = [{"path": path, "size_bytes": size_bytes, "sha256": EMPTY} for path in paths]
    return json.dumps({"about": {} if about is None else about, "entries": entries}).encode()


def test_every_file_is_listed_with_size_and_digest_sorted_by_path(tmp_path: Path) -> None:
    found = take(fill(tmp_path, {"b/c": b"", "a": b"hello", "b.txt": b""}), {"driver": "580"})
    hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert found.entries == (Entry("a", 5, hello), Entry("b.txt", 0, EMPTY), Entry("b/c", 0, EMPTY))
    assert found.size_bytes == 5
    assert found.about == {"driver": "580"}


def test_equal_content_has_equal_identity_wherever_it_lies(tmp_path: Path) -> None:
    files = {"x/y": b"1", "z": b"2"}
    first = take(fill(tmp_path / "one", files), {"a": "1", "b": "2"})
    second = take(fill(tmp_path / "two", dict(reversed(files.items()))), {"b": "2", "a": "1"})
    assert first.identity == second.identity
    fill(tmp_path / "two", {"z": b"3"})
    assert take(tmp_path / "two", first.about).identity != first.identity
    assert take(tmp_path / "one", {"a": "other"}).identity != first.identity


def test_links_and_special_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    fill(tmp_path / "outside", {"secret": b"s"})
    folder = fill(tmp_path / "cache", {"file": b"f"})
    (folder / "link").symlink_to(tmp_path / "outside" / "secret")
    (folder / "linked-folder").symlink_to(tmp_path / "outside")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    assert [entry.path for entry in take(folder).entries] == ["file"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert take(tmp_path / "absent").entries == ()


def test_a_name_that_is_no_text_survives(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")).write_bytes(b"x")
    found = take(tmp_path)
    assert Inventory.parse(found.canonical()) == found


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)
paths = st.lists(names.filter(lambda name: name not in {".", ".."}), min_size=1, max_size=3).map("/".join)


@given(st.sets(paths, max_size=6), st.dictionaries(names, names, max_size=3))
def test_what_is_written_is_read_back_the_same(found: set[str], about: dict[str, str]) -> None:
    separate = [p for p in found if not any(q.startswith(f"{p}/") or p.startswith(f"{q}/") for q in found - {p})]
    inventory = Inventory(tuple(sorted(Entry(path, 1, EMPTY) for path in separate)), about)
    assert Inventory.parse(inventory.canonical()) == inventory


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../up", "a/../../b", "a/..", "..", ".", "", "./a", "a//b", "a/", "a/./b", "nul\0byte", "\ud800"],
)
def test_a_path_that_is_not_plainly_inside_is_refused(path: str) -> None:
    with pytest.raises(Corrupt, match="outside the directory"):
        Inventory.parse(written(path))


def test_a_file_below_another_file_is_refused() -> None:
    with pytest.raises(Corrupt, match="'a/b/c' below another file"):
        Inventory.parse(written("a", "a/b/c"))


def test_a_path_named_twice_is_refused() -> None:
    with pytest.raises(Corrupt, match="twice"):
        Inventory.parse(written("a", "a"))


def test_a_size_below_zero_is_refused() -> None:
    with pytest.raises(Corrupt, match="below 0"):
        Inventory.parse(written("a", size_bytes=-1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"entries": 5, "about": {}}',
        b'{"entries": [{}], "about": {}}',
        b'{"entries": [[]], "about": {}}',
        written("a", size_bytes="many"),
        written("a", size_bytes=None),
        written("a", about=[]),
        b"[" * 200_000,
    ],
    ids=range(12),
)
def test_what_is_no_inventory_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        Inventory.parse(data)


@given(st.binary(max_size=60))
def test_no_bytes_whatever_do_more_than_be_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        Inventory.parse(data)
