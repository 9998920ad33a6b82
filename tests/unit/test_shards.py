from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import tiny_gguf
from worker import gguf_file, shards
from worker.gguf_file import GgufInvalid
from worker.shards import merge, merged_bytes, order

META: dict[str, Any] = {
    "general.architecture": "llama",
    "general.file_type": 15,
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.ggml.tokens": (tiny_gguf.STRING, ["a", "bc"]),
}
TENSORS = [(f"blk.{n}.weight", (n + 1, 3), [float(n)] * (3 * (n + 1))) for n in range(7)]


def split(folder: Path, *sizes: int, counted: int | None = None) -> list[Path]:
    """Write the model in parts of so many tensors each, as gguf-split does: metadata in the first part only."""
    paths, start = [], 0
    for number, size in enumerate(sizes):
        notes = {"split.no": number, "split.count": len(sizes), "split.tensors.count": counted or sum(sizes)}
        meta = META | notes if number == 0 else notes
        path = folder / f"m-{number + 1:05}-of-{len(sizes):05}.gguf"
        paths.append(tiny_gguf.write(path, meta, TENSORS[start : start + size]))
        start += size
    return paths


@pytest.mark.parametrize("sizes", [(3, 4), (1, 1, 5), (0, 7), (6, 1)])
def test_the_parts_make_the_file_they_were(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    whole = tiny_gguf.write(tmp_path / "whole.gguf", META, TENSORS)
    parts = order(list(reversed(split(tmp_path, *sizes))))
    moved: list[int] = []
    merge(parts, tmp_path / "merged.gguf", moved.append)
    assert (tmp_path / "merged.gguf").read_bytes() == whole.read_bytes()
    assert sum(moved) == 4 * sum(len(values) for _, _, values in TENSORS)
    assert merged_bytes(parts) >= whole.stat().st_size
    gguf_file.read(tmp_path / "merged.gguf").require_whole()


def test_tensors_of_a_type_nobody_knows_are_copied_as_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny_gguf.write(tmp_path / "whole.gguf", META, TENSORS)
    paths = split(tmp_path, 3, 4)
    monkeypatch.delitem(gguf_file.BLOCKS, 0)
    merge(order(paths), tmp_path / "merged.gguf")
    assert (tmp_path / "merged.gguf").read_bytes() == whole.read_bytes()


def test_large_tensors_are_copied_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_BLOCK_BYTES", 10)
    whole = tiny_gguf.write(tmp_path / "whole.gguf", META, TENSORS)
    merge(order(split(tmp_path, 3, 4)), tmp_path / "merged.gguf")
    assert (tmp_path / "merged.gguf").read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_part_that_is_missing_is_noticed(tmp_path: Path, left_out: int) -> None:
    paths = split(tmp_path, 2, 2, 3)
    del paths[left_out]
    with pytest.raises(GgufInvalid, match="these are not all parts of one model: "):
        order(paths)


def test_parts_of_different_models_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(GgufInvalid, match="have 7 tensors, they should have 9"):
        order(split(tmp_path, 3, 4, counted=9))


def test_a_part_that_is_cut_off_is_noticed(tmp_path: Path) -> None:
    paths = split(tmp_path, 3, 4)
    paths[1].write_bytes(paths[1].read_bytes()[:-40])
    with pytest.raises(GgufInvalid, match="is cut off"):
        order(paths)


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "merged.gguf").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        merge(order(split(tmp_path, 3, 4)), tmp_path / "merged.gguf")
    assert (tmp_path / "merged.gguf").read_bytes() == b"mine"
