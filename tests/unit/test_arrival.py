"""A model file made near, on local storage: what stays where it is, and what is cleared away."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from worker import arrival, placement, storage
from worker.arrival import bring
from worker.known_digest import Damaged
from worker.landing import BEFORE, Terms
from worker.pace import Slower
from worker.progress import Halted, Meter
from worker.storage import Place

MIB = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "volume" / "sha256-abc"
    path.parent.mkdir()
    path.write_bytes(os.urandom(5 * MIB + 3))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "landed"


@pytest.fixture
def distant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything below a folder named "volume" count as distant; tests/e2e has the real thing."""
    real = storage.place

    def place(path: Path) -> Place:
        found = real(path)
        return Place(path, "fuse", found.free_bytes) if "volume" in path.parts else found

    monkeypatch.setattr(storage, "place", place)
    monkeypatch.setattr(storage, "cached_share", lambda _: 0.0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_local_file_stays_and_says_why(source: Path, folder: Path) -> None:
    arrived = bring(source, [folder])
    assert arrived.path == source
    assert arrived.reason.endswith(" is local")
    assert arrived.landed is None
    assert not folder.exists()


@pytest.mark.usefixtures("distant")
def test_a_distant_file_lands_under_its_own_name(source: Path, folder: Path) -> None:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    arrived = bring(source, [folder], Terms(sha256=digest))
    assert arrived.path == folder / "sha256-abc"
    assert arrived.path.read_bytes() == source.read_bytes()
    assert arrived.reason == f"fuse is distant, {folder} has room"
    assert arrived.landed is not None
    assert arrived.landed.size_bytes == source.stat().st_size
    again = bring(source, [folder])
    assert again.landed is not None
    assert again.landed.method == BEFORE


@pytest.mark.usefixtures("distant")
def test_without_a_folder_it_stays(source: Path) -> None:
    arrived = bring(source, [])
    assert (arrived.path, arrived.reason) == (source, "fuse is distant, but no folder was offered")


@pytest.mark.usefixtures("distant")
def test_a_landing_that_fails_leaves_the_file_where_it_is_with_the_error_in_words(source: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    arrived = bring(source, [tmp_path / "plain"])
    assert arrived.path == source
    assert arrived.reason.startswith("it could not be landed: ")
    assert "plain" in arrived.reason


@pytest.mark.usefixtures("distant")
def test_a_landing_that_does_not_pay_leaves_the_file_where_it_is(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(*_: object, **__: object) -> None:
        raise Slower("landing would take 9.0 s more, reading in place 1.0 s")

    monkeypatch.setattr(arrival, "land", slower)
    arrived = bring(source, [folder])
    assert arrived.path == source
    assert arrived.reason.startswith("reading in place is faster: landing would take 9.0 s")


def test_a_file_that_is_not_there_is_left_to_who_needs_it(tmp_path: Path, folder: Path) -> None:
    arrived = bring(tmp_path / "absent", [folder])
    assert (arrived.path, arrived.landed) == (tmp_path / "absent", None)


@pytest.mark.usefixtures("distant")
def test_a_distant_file_that_is_not_there_is_named(tmp_path: Path, folder: Path) -> None:
    assert "No such file" in bring(tmp_path / "volume" / "absent", [folder]).reason


@pytest.mark.usefixtures("distant")
def test_damage_is_not_passed_over(source: Path, folder: Path) -> None:
    with pytest.raises(Damaged):
        bring(source, [folder], Terms(sha256="0" * 64))
    assert names(folder) == []


@pytest.mark.usefixtures("distant")
def test_being_told_to_stop_is_not_passed_over(source: Path, folder: Path) -> None:
    def stop() -> None:
        raise Halted("SIGTERM")

    with pytest.raises(Halted):
        bring(source, [folder], meter=Meter(1, halt=stop))
    assert names(folder) == []


def test_what_a_killed_landing_left_is_removed_even_when_nothing_is_landed(source: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / ".sha256-old.partial").write_bytes(bytes(MIB))
    (folder / "sha256-other").touch()
    bring(source, [folder])
    assert names(folder) == ["sha256-other"]


@pytest.mark.usefixtures("distant")
def test_the_plan_hands_on_what_it_found_out(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Terms] = []
    real = arrival.land
    monkeypatch.setattr(placement, "plan", lambda *_: placement.Plan(folder, "chosen", 77, 0.25))
    monkeypatch.setattr(arrival, "land", lambda s, t, terms, *, meter: (seen.append(terms), real(s, t, meter=meter))[1])
    assert bring(source, [folder], Terms(stall_s=9.0)).landed is not None
    assert (seen[0].reread_bytes, seen[0].cached_share, seen[0].stall_s) == (77, 0.25, 9.0)
