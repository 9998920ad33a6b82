"""Backends in a library directory as Ollama lays it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.cuda_library import library, ptx, sass
from worker.backend import Backend, find, read
from worker.environment import BACKEND_FILE
from worker.fatbin import parse

if TYPE_CHECKING:
    from pathlib import Path


def put(directory: Path, *modules: list[bytes], runtime: str = "") -> Path:
    """Write a backend: its library and, beside it, the file names of a CUDA runtime."""
    directory.mkdir(parents=True)
    (directory / BACKEND_FILE).write_bytes(library(*modules))
    if runtime:
        for name in (f"libcudart.so.{runtime.partition('.')[0]}", f"libcudart.so.{runtime}"):
            (directory / name).touch()
    return directory


def test_every_directory_with_a_cuda_library_is_a_backend(tmp_path: Path) -> None:
    put(tmp_path / "cuda_v13", [ptx("90")], runtime="13.0.96")
    put(tmp_path / "cuda_v12", [sass("90")], runtime="12.8.90")
    (tmp_path / "vulkan").mkdir()
    (tmp_path / "vulkan" / "libggml-vulkan.so").touch()
    (tmp_path / "libggml-base.so").touch()
    assert [(backend.name, backend.runtime) for backend in find(tmp_path)] == [
        ("cuda_v12", (12, 8)),
        ("cuda_v13", (13, 0)),
    ]


@pytest.mark.parametrize("missing", ["nothing", "here/at/all"])
def test_a_directory_without_backends_gives_none(missing: str, tmp_path: Path) -> None:
    assert find(tmp_path / missing) == []


@pytest.mark.parametrize(
    ("name", "runtime", "expected"),
    [
        ("cuda_v12", "12.8.90", (12, 8)),
        ("cuda_v12", "", (12, 0)),
        ("cuda_v13", "", (13, 0)),
        ("mine", "12.4.1", (12, 4)),
        ("mine", "", None),
        ("cuda_jetpack6", "", None),
    ],
)
def test_the_runtime_is_the_one_that_lies_there_or_the_one_in_the_name(
    name: str, runtime: str, expected: tuple[int, int] | None, tmp_path: Path
) -> None:
    assert read(put(tmp_path / name, [sass("90")], runtime=runtime)).runtime == expected


def test_code_is_summed_up_by_architecture(tmp_path: Path) -> None:
    backend = read(put(tmp_path / "cuda_v12", [sass("90a"), sass("80"), ptx("120")], [sass("80"), ptx("90")]))
    assert backend.architectures("sass") == ("80", "90a")
    assert backend.architectures("ptx") == ("90", "120")
    assert backend.capabilities == {(8, 0), (9, 0), (12, 0)}


def test_the_stubs_of_a_device_link_do_not_count(tmp_path: Path) -> None:
    backend = read(put(tmp_path / "cuda_v12", [sass("90")], [sass("75", kernels=False)]))
    assert len(backend.modules) == 1
    assert backend.capabilities == {(9, 0)}


def test_a_damaged_library_is_a_backend_with_a_problem(tmp_path: Path) -> None:
    put(tmp_path / "cuda_v12", [sass("90")])
    (tmp_path / "cuda_v12" / BACKEND_FILE).write_bytes(b"not a library at all")
    put(tmp_path / "cuda_v13", [sass("90")])
    broken, whole = find(tmp_path)
    assert broken.problem.startswith("cannot be read: ")
    assert str(tmp_path / "cuda_v12" / BACKEND_FILE) in broken.problem
    assert (broken.modules, broken.driver_floor) == ((), 0)
    assert whole.problem == ""


def test_a_library_that_cannot_be_opened_is_a_backend_with_a_problem(tmp_path: Path) -> None:
    (tmp_path / "cuda_v12" / BACKEND_FILE).mkdir(parents=True)
    (backend,) = find(tmp_path)
    assert "Is a directory" in backend.problem


@pytest.mark.parametrize(
    ("runtime", "compression", "floor"),
    [
        (None, "", 0),
        (None, "zstd", 550),
        ((11, 8), "", 450),
        ((11, 8), "lz4", 450),
        ((12, 0), "", 525),
        ((12, 0), "zstd", 550),
        ((12, 4), "", 550),
        ((12, 8), "zstd", 550),
        ((13, 0), "", 580),
        ((13, 0), "zstd", 580),
        ((14, 0), "", 580),
        ((10, 2), "", 0),
    ],
)
def test_the_driver_floor_follows_from_runtime_and_compression(
    runtime: tuple[int, int] | None, compression: str, floor: int
) -> None:
    modules = parse(library([sass("90", compression=compression)]), "x.so")
    assert Backend("x", modules, runtime).driver_floor == floor
