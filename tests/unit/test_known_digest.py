from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from worker import known_digest
from worker.known_digest import Damaged, computed, named, of, remember, remembered

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def reads(path: Path, memory: Path) -> tuple[str, int]:
    """Return the digest and how many bytes had to be read for it."""
    counts: list[int] = []
    return of(path, memory, counts.append), sum(counts)


def test_a_digest_is_computed_once(file: Path, memory: Path) -> None:
    assert reads(file, memory) == (SHA256, len(CONTENT))
    assert reads(file, memory) == (SHA256, 0)
    assert [path.name for path in file.parent.iterdir() if path != file] == [".m.gguf.sha256"]
    assert not memory.exists()


@pytest.mark.parametrize("how", ["content", "time", "size"])
def test_a_file_that_changed_is_read_again(file: Path, memory: Path, how: str) -> None:
    reads(file, memory)
    if how == "size":
        file.write_bytes(CONTENT[:-1])
    elif how == "content":
        file.write_bytes(CONTENT[::-1])
        os.utime(file, ns=(0, 1))
    else:
        os.utime(file, ns=(0, 2))
    assert reads(file, memory) == (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size)


def test_where_nothing_can_be_put_beside_it_is_remembered_elsewhere(
    file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def refusing(path: Path, *args: str, **more: str) -> int:
        if path.parent == file.parent:
            raise PermissionError(13, "Read-only file system")
        return write(path, *args, **more)

    monkeypatch.setattr(Path, "write_text", refusing)
    assert reads(file, memory)[1] == len(CONTENT)
    assert reads(file, memory)[1] == 0
    assert [path for path in file.parent.iterdir() if path != file] == []
    (note,) = memory.iterdir()
    note.write_bytes(b"{broken")
    assert remembered(file, memory) == ""


def test_where_nothing_can_be_remembered_it_is_computed_each_time(file: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    (file.parent / ".m.gguf.sha256").mkdir()
    assert [reads(file, blocked / "memory")[1] for _ in range(2)] == [len(CONTENT)] * 2


def test_a_link_shares_what_is_remembered_of_its_file(file: Path, memory: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    remember(link, memory, SHA256)
    assert remembered(file, memory) == SHA256


@pytest.mark.parametrize(
    ("place", "known"),
    [
        (f"blobs/{SHA256}", SHA256),
        (f"blobs/sha256-{SHA256}", SHA256),
        (f"blobs/{SHA256}.incomplete", ""),
        (f"blobs/{SHA256[:40]}", ""),
        (f"other/{SHA256}", ""),
        (f"blobs/{SHA256.upper()}", ""),
    ],
)
def test_a_cache_names_its_files_by_digest(tmp_path: Path, place: str, known: str) -> None:
    blob = tmp_path / place
    blob.parent.mkdir()
    blob.write_bytes(CONTENT)
    link = tmp_path / "snapshot.gguf"
    link.symlink_to(blob)
    assert named(link) == named(blob) == known


def test_computing_can_be_stopped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_digest, "READ_BYTES", 1000)
    counts: list[int] = []

    def advance(count: int) -> None:
        counts.append(count)
        if len(counts) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        computed(file, advance)
    assert counts == [1000] * 3


def test_damage_is_told_without_whole_digests() -> None:
    error = Damaged("m.gguf", "a" * 64, "b" * 64)
    assert str(error) == f"m.gguf: the bytes have sha256 {'a' * 12}…, they should have {'b' * 12}…"
