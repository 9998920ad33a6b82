"""`bench transfer` in miniature: every way brings the whole file, and the figures say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import transfer
from worker.known_digest import computed


def test_every_case_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CASES", {"8 MB/s a connection": 8e6, "no cap": 0.0})
    assert transfer.run(tmp_path, size_bytes=24 << 20, rounds=1) == 0
    capped, free = json.loads((tmp_path / "transfer.json").read_text())
    assert [capped["case"], free["case"]] == ["8 MB/s a connection", "no cap"]
    assert {len(values) for row in (capped, free) for values in row["rounds_s"].values()} == {1}
    for row in (capped, free):
        (limit_s,), (verified_s,), (worker_s,) = (row["rounds_s"][way] for way in ("limit", "verified", "worker"))
        assert row["bound"] == pytest.approx(min(1.0, limit_s / verified_s), rel=0.05, abs=0.02)
        assert row["worker_to_verified"] == pytest.approx(verified_s / worker_s, rel=0.05, abs=0.02)
        (written_s,), (fetched_s,) = row["rounds_s"]["written"], row["rounds_s"]["fetched"]
        assert row["fetched_to_written"] == pytest.approx(written_s / fetched_s, rel=0.05, abs=0.02)
    # A ratio of one run: several capped connections together are faster than one, whatever the machine.
    assert capped["worker_to_one"] > 1.2


def test_bytes_that_are_not_the_file_are_no_result(tmp_path: Path) -> None:
    made = transfer._write(tmp_path / "file", 3 << 20)
    assert made == computed(tmp_path / "file")
    with transfer._served(tmp_path / "file", 0.0) as port:
        assert transfer._once("limit", port, tmp_path, 3 << 20, made) > 0
        with pytest.raises(transfer.subprocess.CalledProcessError):
            transfer._once("worker", port, tmp_path, 3 << 20, "0" * 64)
    assert not list((tmp_path / "target").glob("*"))


def test_the_limits_are_limits_of_the_same_file(tmp_path: Path) -> None:
    size = (5 << 20) + 17
    transfer._write(tmp_path / "file", size)
    with transfer._served(tmp_path / "file", 0.0) as port, (tmp_path / "copy").open("w+b") as copy:
        assert transfer._raw(port, size, 3, copy.fileno()) > 0
        for way in ("fetched", "verified"):
            assert transfer._once(way, port, tmp_path, size, "not looked at") > 0
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "file", "target"]
