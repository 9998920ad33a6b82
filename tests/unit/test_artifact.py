"""A directory packed and installed: whole and verified, or as it was before."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import artifact
from worker.artifact import inspect, install, pack, sweep
from worker.inventory import Corrupt, take

FILES = {"index": b"i" * 3000, "ab/cd/kernel": os.urandom(70_000), "empty": b"", "inventory.json": b"of the driver"}
ABOUT = {"driver": "580"}


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return fill(tmp_path / "cache", FILES)


@pytest.fixture
def packed(directory: Path, tmp_path: Path) -> Path:
    target = tmp_path / "shared" / "cache.tar"
    pack(directory, target, ABOUT)
    return target


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_packed_is_installed_the_same(packed: Path, directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "cache"
    installed = install(packed, target)
    assert content(target) == FILES
    assert installed == inspect(packed) == take(directory, ABOUT)
    assert names(target.parent) == ["cache"]
    assert names(packed.parent) == ["cache.tar"]


def test_packing_the_same_content_gives_the_same_bytes(packed: Path, tmp_path: Path) -> None:
    copy = fill(tmp_path / "copy", dict(reversed(FILES.items())))
    pack(copy, tmp_path / "again.tar", ABOUT)
    assert (tmp_path / "again.tar").read_bytes() == packed.read_bytes()


def test_an_empty_directory_can_be_packed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    pack(tmp_path / "cache", tmp_path / "p.tar")
    assert install(tmp_path / "p.tar", tmp_path / "new").entries == ()
    assert content(tmp_path / "new") == {}


def test_long_and_strange_names_survive(tmp_path: Path) -> None:
    strange = {"d" * 120 + "/" + "e" * 200: b"1", "späte Zeile\n": b"2", os.fsdecode(b"\xff\xfe"): b"3"}
    pack(fill(tmp_path / "cache", strange), tmp_path / "p.tar")
    install(tmp_path / "p.tar", tmp_path / "new")
    assert content(tmp_path / "new") == strange


def test_installing_replaces_the_directory_as_a_whole(packed: Path, tmp_path: Path) -> None:
    old = fill(tmp_path / "old", {"stale": b"s", "index": b"other"})
    install(packed, old)
    assert content(old) == FILES
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_links_are_not_packed(directory: Path, tmp_path: Path) -> None:
    (directory / "link").symlink_to("/etc/passwd")
    assert [e.path for e in pack(directory, tmp_path / "p.tar").entries] == sorted(FILES)


def test_a_file_that_changes_while_it_is_packed_spoils_the_packing(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "shared" / "p.tar"
    for change in (b"i" * 2999, b"j" * 3000):

        def take_then_change(folder: Path, about: dict[str, str] | None, new: bytes = change) -> object:
            fill(directory, {"index": FILES["index"]})
            inventory = take(folder, about)
            fill(directory, {"index": new})
            return inventory

        monkeypatch.setattr(artifact, "take", take_then_change)
        with pytest.raises(Corrupt, match="index changed while it was packed"):
            pack(directory, target)
        assert names(target.parent) == []


def test_what_is_not_confirmed_is_not_published(directory: Path, packed: Path, tmp_path: Path) -> None:
    before = packed.read_bytes()

    def refuse() -> None:
        raise PermissionError(errno.EACCES, "somebody else writes now")

    fill(directory, {"more": b"m"})
    with pytest.raises(PermissionError):
        pack(directory, packed, ABOUT, refuse)
    assert packed.read_bytes() == before
    assert names(packed.parent) == ["cache.tar"]
    with pytest.raises(PermissionError):
        install(packed, tmp_path / "new", refuse)
    assert not (tmp_path / "new").exists()


def test_a_packing_that_fails_leaves_the_old_one(
    directory: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = packed.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        pack(directory, packed)
    assert packed.read_bytes() == before
    assert names(packed.parent) == ["cache.tar"]


class Forged:
    """A packed file written by hand, as an attacker or a broken disk would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = tarfile.open(path, "w")  # noqa: SIM115 - closed by done()

    def inventory(self, *paths: str, body: bytes = b"x", size_bytes: int | None = None) -> Forged:
        size = len(body) if size_bytes is None else size_bytes
        entry = {"size_bytes": size, "sha256": hashlib.sha256(body).hexdigest()}
        text = json.dumps({"about": {}, "entries": [{**entry, "path": path} for path in paths]})
        return self.member("inventory.json", text.encode())

    def member(self, name: str, body: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "") -> Forged:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(body)
        self._archive.addfile(info, io.BytesIO(body))
        return self

    def done(self) -> Path:
        self._archive.close()
        return self.path


@pytest.fixture
def forged(tmp_path: Path) -> Forged:
    return Forged(tmp_path / "forged.tar")


def refused(source: Path, tmp_path: Path, reason: str) -> None:
    """Assert that nothing is installed, in a new place or over an old directory, and nothing is left."""
    before = fill(tmp_path / "target", {"old": b"kept"})
    for target in (tmp_path / "new", before):
        with pytest.raises(Corrupt, match=reason):
            install(source, target)
    assert content(before) == {"old": b"kept"}
    assert sorted(set(names(tmp_path)) - {source.name}) == ["target"]


def test_a_path_out_of_the_directory_is_refused(forged: Forged, tmp_path: Path) -> None:
    refused(forged.inventory("../escape").member("../escape").done(), tmp_path, "outside")
    assert not (tmp_path.parent / "escape").exists()


def test_a_member_out_of_the_directory_is_refused_although_the_inventory_is_fine(
    forged: Forged, tmp_path: Path
) -> None:
    refused(forged.inventory("a").member("../a").done(), tmp_path, "not in the inventory")


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE],
)
def test_anything_but_a_plain_file_is_refused(kind: bytes, forged: Forged, tmp_path: Path) -> None:
    source = forged.inventory("a", body=b"").member("a", b"", kind, "/etc/passwd").done()
    refused(source, tmp_path, "not in the inventory|not a packed directory")


def test_a_file_behind_a_link_is_refused(forged: Forged, tmp_path: Path) -> None:
    source = forged.inventory("a/b").member("a", b"", tarfile.SYMTYPE, "/tmp").member("a/b").done()  # noqa: S108 - refused
    refused(source, tmp_path, "not in the inventory")


def test_more_members_than_listed_are_refused(forged: Forged, tmp_path: Path) -> None:
    refused(forged.inventory("a").member("a").member("b").done(), tmp_path, "'b' is not in the inventory")


def test_a_member_twice_is_refused(forged: Forged, tmp_path: Path) -> None:
    refused(forged.inventory("a").member("a").member("a").done(), tmp_path, "'a' is not in the inventory")


def test_a_missing_member_is_refused(forged: Forged, tmp_path: Path) -> None:
    refused(forged.inventory("a", "b").member("a").done(), tmp_path, "b is missing")


def test_other_bytes_than_listed_are_refused(forged: Forged, tmp_path: Path) -> None:
    refused(forged.inventory("a", body=b"x").member("a", b"y").done(), tmp_path, "a has other bytes")


def test_a_promise_of_more_than_there_is_is_refused_before_anything_is_written(forged: Forged, tmp_path: Path) -> None:
    source = forged.inventory("a", size_bytes=1 << 50).member("a").done()
    refused(source, tmp_path, "promises 1,125,899,906,842,624 bytes, more than the file has")


def test_a_name_no_filesystem_takes_is_refused(forged: Forged, tmp_path: Path) -> None:
    name = "n" * 300
    refused(forged.inventory(name).member(name).done(), tmp_path, "cannot be a file's name here")


def test_a_file_without_an_inventory_is_refused(forged: Forged, tmp_path: Path) -> None:
    refused(forged.member("a").done(), tmp_path, "does not begin with an inventory")


@pytest.mark.parametrize("data", [b"", b"x" * 5000, bytes(10_240), b"\x1f\x8b" + bytes(600)])
def test_what_is_no_packed_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(data)
    refused(tmp_path / "bad.tar", tmp_path, "not a packed directory|does not begin with an inventory")


def test_a_packed_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        install(tmp_path / "absent.tar", tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        inspect(tmp_path / "absent.tar")
    assert names(tmp_path) == []


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    fill(folder / "cache", {"a": b"first" * 50, "b/c": b"second" * 100})
    pack(folder / "cache", folder / "p.tar", ABOUT)
    return folder


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_was_not_damaged_where_it_counts(small: Path, data: st.DataObject) -> None:
    raw = bytearray((small / "p.tar").read_bytes())
    if data.draw(st.booleans(), "cut"):
        del raw[data.draw(st.integers(0, len(raw) - 1), "length") :]
    else:
        at = data.draw(st.integers(0, len(raw) - 1), "byte")
        raw[at] ^= 1 << data.draw(st.integers(0, 7), "bit")
    (small / "damaged.tar").write_bytes(raw)
    try:
        install(small / "damaged.tar", small / "out")
    except Corrupt:
        return
    assert content(small / "out") == content(small / "cache")


def test_random_bytes_after_the_inventory_install_nothing(packed: Path, tmp_path: Path) -> None:
    raw = packed.read_bytes()
    dice = random.Random(1)  # noqa: S311 - test data
    packed.write_bytes(raw[:2048] + dice.randbytes(len(raw) - 2048))
    with pytest.raises(Corrupt):
        install(packed, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_killed_processes_left_is_swept_away_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path, {"c.tar": b"1", ".c.tar.0.partial": b"2", ".other.tar.0.partial": b"3", ".c.tar.lease": b"4"})
    fill(tmp_path / ".c.tar.1.old", {"deep/er": b"5"})
    sweep(tmp_path / "c.tar")
    assert names(tmp_path) == [".c.tar.lease", ".other.tar.0.partial", "c.tar"]


def test_the_old_directory_stays_when_the_new_one_cannot_take_its_place(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = fill(tmp_path / "target", {"old": b"kept"})
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.EIO, "no")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="no"):
        install(packed, target)
    assert content(target) == {"old": b"kept"}
