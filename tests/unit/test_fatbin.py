"""Libraries with GPU code of every kind, whole and damaged; real compilers where NVCC and CUOBJDUMP name them."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fakes.cuda_library import cubin, elf, fatbin, library, other, ptx, sass
from worker.fatbin import Architecture, FatbinInvalid, parse, read

EVERYTHING = library(
    [sass("80"), sass("90a"), sass("100f"), ptx("90")],
    [sass("90", compression="zstd"), sass("120a", compression="lz4"), ptx("120f"), other("90")],
    [sass("75", kernels=False)],
)


def kinds(data: bytes) -> list[str]:
    return [f"{entry.kind} {entry.architecture}" for module in parse(data, "x.so") for entry in module.entries]


def test_every_kind_of_entry_is_listed_in_file_order() -> None:
    assert kinds(EVERYTHING) == [
        "sass 80",
        "sass 90a",
        "sass 100f",
        "ptx 90",
        "sass 90",
        "sass 120a",
        "ptx 120f",
        "other 90",
        "sass 75",
    ]


def test_sizes_versions_and_compression_come_from_the_entry() -> None:
    (module,) = parse(library([ptx("90", version=(8, 7), size=4220), sass("90", compression="lz4")]), "x.so")
    code, machine = module.entries
    assert (code.version, code.compression, code.stored_bytes, code.unpacked_bytes) == ((8, 7), "zstd", 96, 4220)
    assert (machine.version, machine.compression, machine.unpacked_bytes) == ((1, 8), "lz4", 9000)


def test_raw_code_is_as_large_as_it_is_stored() -> None:
    (module,) = parse(library([ptx("90", compression="", size=0)]), "x.so")
    assert module.entries[0].unpacked_bytes == module.entries[0].stored_bytes == 96


def test_the_offset_of_a_module_is_where_its_magic_number_lies() -> None:
    modules = parse(EVERYTHING, "x.so")
    assert [EVERYTHING[module.offset : module.offset + 4] for module in modules] == [b"\x50\xed\x55\xba"] * 3


@pytest.mark.parametrize("compression", ["", "zstd", "lz4"])
def test_the_stub_of_a_device_link_is_empty_and_a_module_with_a_kernel_is_not(compression: str) -> None:
    stub, real = [sass("90", compression=compression, kernels=kernels) for kernels in (False, True)]
    assert [module.empty for module in parse(library([stub], [real]), "x.so")] == [True, False]


def test_a_module_with_ptx_is_never_a_stub() -> None:
    (module,) = parse(library([sass("90", kernels=False), ptx("90", size=90)]), "x.so")
    assert not module.empty


def test_code_for_the_device_linker_is_not_code_that_runs() -> None:
    waiting = ("__nv_relfatbin", fatbin(sass("90")), 2)
    assert parse(library(extra=[waiting]), "x.so") == ()
    assert kinds(library([ptx("80")], extra=[waiting])) == ["ptx 80"]


def test_a_library_without_gpu_code_has_no_modules() -> None:
    assert parse(library(), "x.so") == ()
    assert read(Path("/bin/sh").resolve()) == ()


def test_an_elf_file_without_section_headers_has_no_modules() -> None:
    data = bytearray(library([ptx("80")]))
    data[0x28:0x30] = bytes(8)
    data[0x3C:0x40] = bytes(4)
    assert parse(bytes(data), "x.so") == ()


def test_section_counts_too_large_for_the_header_are_read_from_section_0() -> None:
    data = bytearray(library([ptx("80")]))
    table, count, names = *struct.unpack_from("<Q", data, 0x28), *struct.unpack_from("<HH", data, 0x3C)
    struct.pack_into("<HH", data, 0x3C, 0, 0xFFFF)
    struct.pack_into("<QI", data, table + 0x20, count, names)
    assert kinds(bytes(data)) == ["ptx 80"]


def test_a_code_section_without_content_in_the_file_is_skipped() -> None:
    data = bytearray(library([ptx("80")]))
    (table,) = struct.unpack_from("<Q", data, 0x28)
    struct.pack_into("<I", data, table + 2 * 64 + 4, 8)  # NOBITS, as in a separate debug file
    assert parse(bytes(data), "x.so") == ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a 64-bit little-endian ELF"),
        (b"\x7fELF\x01\x01" + bytes(60), "not a 64-bit little-endian ELF"),
        (b"#!/bin/sh\n" * 20, "not a 64-bit little-endian ELF"),
        (EVERYTHING[:50], "bytes expected"),
        (EVERYTHING[:-10], "bytes expected"),
        (elf((".nv_fatbin", b"neither padding nor code", 2)), "neither GPU code nor padding"),
        (elf((".nv_fatbin", fatbin(sass("90"))[:-64], 2)), "reaches past its section"),
        (elf((".nv_fatbin", fatbin(sass("90")[:-64]), 2)), "does not fit its module"),
        (elf((".nv_fatbin", fatbin(ptx("90"), bytes(32)), 2)), "bytes expected"),
        (elf((".nv_fatbin", fatbin(ptx("7")), 2)), "no such architecture: 7"),
        (elf((".nv_fatbin", fatbin(sass("90").replace(b"\x7fELF", b"\x7fELV")), 2)), "not a 64-bit little-endian ELF"),
        (elf((".nv_fatbin", fatbin(ptx("90")).replace(b"\x01\0\x10\0", b"\x01\0\x08\0"), 2)), "neither GPU code"),
        (elf((".nv_fatbin", bytes(3) + fatbin(ptx("90")), 2)), "neither GPU code nor padding"),
    ],
)
def test_damage_is_named_with_file_and_offset(data: bytes, problem: str) -> None:
    with pytest.raises(FatbinInvalid, match=problem) as caught:
        parse(data, "lib/broken.so")
    assert str(caught.value).startswith("lib/broken.so: ")
    assert f"at offset {caught.value.offset:#x}" in str(caught.value)
    assert 0 <= caught.value.offset <= len(data) + 64


@pytest.mark.parametrize("field", [0x18, 0x20])
def test_a_section_that_reaches_past_the_file_is_refused(field: int) -> None:
    data = bytearray(EVERYTHING)
    (table,) = struct.unpack_from("<Q", data, 0x28)
    struct.pack_into("<Q", data, table + 2 * 64 + field, len(data) - 8)
    with pytest.raises(FatbinInvalid, match="a section reaches past the end of the file"):
        parse(bytes(data), "x.so")


def test_section_headers_that_would_never_end_are_refused() -> None:
    data = bytearray(EVERYTHING)
    struct.pack_into("<HH", data, 0x3A, 0, 0)
    with pytest.raises(FatbinInvalid, match="section headers of 0 bytes"):
        parse(bytes(data), "x.so")


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.so").touch()
    with pytest.raises(FatbinInvalid, match=r"empty\.so: empty file"):
        read(tmp_path / "empty.so")


def test_a_file_on_disk_reads_like_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(EVERYTHING)
    assert read(tmp_path / "x.so") == parse(EVERYTHING, "x.so")


def sane(data: bytes) -> None:
    """Whatever `data` is, the answer is modules inside it or the one typed error."""
    try:
        modules = parse(data, "fuzz.so")
    except FatbinInvalid:
        return
    for module in modules:
        assert 0 <= module.offset < len(data)
        assert sum(entry.stored_bytes for entry in module.entries) < len(data)


@given(st.integers(0, len(EVERYTHING)))
def test_any_truncation_gives_modules_or_the_typed_error(length: int) -> None:
    sane(EVERYTHING[:length])


@given(st.lists(st.tuples(st.integers(0, len(EVERYTHING) * 8 - 1)), min_size=1, max_size=8))
def test_any_flipped_bits_give_modules_or_the_typed_error(flips: list[tuple[int]]) -> None:
    data = bytearray(EVERYTHING)
    for (bit,) in flips:
        data[bit // 8] ^= 1 << bit % 8
    sane(bytes(data))


@given(
    st.integers(0, len(EVERYTHING) - 8),
    st.sampled_from([0, 1, 0xFFFF, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 64, 1 << 24]),
)
@example(0x28, 2**64 - 1)
@example(0x3A, 0xFFFFFFFF)
def test_any_absurd_number_gives_modules_or_the_typed_error(at: int, number: int) -> None:
    data = bytearray(EVERYTHING)
    struct.pack_into("<Q", data, at, number)
    sane(bytes(data))


@given(st.binary(max_size=400))
def test_garbage_behind_an_elf_header_gives_modules_or_the_typed_error(tail: bytes) -> None:
    sane(tail)
    sane(b"\x7fELF\x02\x01" + tail)


@given(st.binary(max_size=300))
def test_garbage_where_code_should_be_gives_modules_or_the_typed_error(content: bytes) -> None:
    sane(elf((".nv_fatbin", content, 2)))
    sane(elf((".nv_fatbin", fatbin(content), 2)))


def test_architectures_sort_as_versions_and_not_as_text() -> None:
    architectures = [Architecture(12, 0), Architecture(9, 0, "a"), Architecture(8, 9), Architecture(9, 0)]
    assert [str(architecture) for architecture in sorted(architectures)] == ["89", "90", "90a", "120"]


# From here on: real tools and a real library, where the environment names them.

NVCC, CUOBJDUMP, CUDA_LIBRARY = (os.environ.get(name, "") for name in ("NVCC", "CUOBJDUMP", "CUDA_LIBRARY"))
needs_tools = pytest.mark.skipif(not (NVCC and CUOBJDUMP), reason="NVCC and CUOBJDUMP name no CUDA compiler")

KERNEL = """
__global__ void scale(float *x, float f, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= f; }
extern "C" void launch(float *x, int n) { scale<<<1, 256>>>(x, 2.0f, n); }
"""
VARIANTS = {
    "virtual": ["-gencode=arch=compute_80,code=compute_80", "-gencode=arch=compute_90,code=compute_90"],
    "real": ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"],
    "mixed": ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]"],
    "specific": [
        "-gencode=arch=compute_90a,code=[sm_90a,compute_90a]",
        "-gencode=arch=compute_100f,code=[sm_100f,compute_100f]",
    ],
    "zstd": ["-gencode=arch=compute_90,code=[sm_90,compute_90]", "--compress-mode=size"],
    "lz4": ["-gencode=arch=compute_90,code=[sm_90,compute_90]", "--compress-mode=speed", "-Xfatbin=-compress-all"],
}


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=110).stdout


ENTRY = re.compile(
    r"Fatbin (elf|ptx) code:\n=+\narch = sm_(\w+)\ncode version = \[(\d+),(\d+)\]\n(.*?)\n(?:\n|\Z)", re.DOTALL
)


def seen_by_cuobjdump(path: Path) -> Counter[tuple[str, str, int, int, bool]]:
    return Counter(
        ("sass" if kind == "elf" else "ptx", architecture, int(major), int(minor), "compressed" in rest.split())
        for kind, architecture, major, minor, rest in ENTRY.findall(run(CUOBJDUMP, str(path)))
    )


def seen_here(path: Path) -> Counter[tuple[str, str, int, int, bool]]:
    entries = (entry for module in read(path) for entry in module.entries)
    return Counter((entry.kind, str(entry.architecture), *entry.version, bool(entry.compression)) for entry in entries)


@needs_tools
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_compiled_library_reads_as_cuobjdump_reads_it(variant: str, tmp_path: Path) -> None:
    source, target = tmp_path / "kernel.cu", tmp_path / "kernel.so"
    source.write_text(KERNEL)
    shared = ["-shared", "-Xcompiler", "-fPIC", "-cudart", "none"]
    run(NVCC, *shared, *VARIANTS[variant], str(source), "-o", str(target))
    assert seen_here(target)
    assert seen_here(target) == seen_by_cuobjdump(target)
    assert not any(module.empty for module in read(target))
    used = {entry.compression for module in read(target) for entry in module.entries}
    if variant in {"zstd", "lz4"}:
        assert used == {variant}


@needs_tools
def test_the_stub_of_a_real_device_link_is_empty(tmp_path: Path) -> None:
    source, made, linked = tmp_path / "kernel.cu", tmp_path / "kernel.o", tmp_path / "stub.o"
    source.write_text(KERNEL)
    real = "-gencode=arch=compute_90,code=sm_90"
    run(NVCC, "-c", real, str(source), "-o", str(made))
    for mode in ("none", "size", "speed"):
        run(NVCC, "-dlink", real, f"--compress-mode={mode}", str(made), "-o", str(linked))
        assert [module.empty for module in read(linked)] == [True], mode


@pytest.mark.skipif(not (CUDA_LIBRARY and CUOBJDUMP), reason="CUDA_LIBRARY and CUOBJDUMP name no library to compare")
def test_a_real_library_reads_as_cuobjdump_reads_it() -> None:
    assert seen_here(Path(CUDA_LIBRARY)) == seen_by_cuobjdump(Path(CUDA_LIBRARY))


def test_a_cubin_by_itself_has_no_modules() -> None:
    assert parse(cubin(), "x.cubin") == ()
