"""The key of compiled kernels: the same for the same build on the same devices, another for anything else."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.cuda_library import library, ptx
from worker.device import Device, Driver, Found
from worker.environment import BACKEND_FILE
from worker.jit_key import NoKey, build_of, jit_key

H100 = Device(0, "NVIDIA H100", "GPU-1", (9, 0))
L4 = Device(1, "NVIDIA L4", "GPU-2", (8, 9))
DRIVER = Driver("580.95.05", (13, 0))
BUILD = bytes(range(20))


def note(kind: int, name: bytes, content: bytes, align: int = 4) -> bytes:
    """Return one note, padded as the linker pads it."""
    head = struct.pack("<III", len(name), len(content), kind) + name + bytes(-len(name) % 4)
    whole = head + content + bytes(-len(content) % 4)
    return whole + bytes(-len(whole) % align)


def noted(*segments: tuple[bytes, int]) -> bytes:
    """Return an ELF file whose program headers point to `segments`: notes and their alignment."""
    table_at, content_at = 64, 64 + 56 * (len(segments) + 1)
    programs, content = [struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 0, 0, 4096)], b""
    for notes, align in segments:
        at = content_at + len(content)
        programs.append(struct.pack("<IIQQQQQQ", 4, 4, at, at, at, len(notes), len(notes), align))
        content += notes
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, table_at, 0, 0, 64, 56, len(programs), 64, 0, 0)
    return head + b"".join(programs) + content


WITH_BUILD_ID = noted(
    (note(5, b"GNU\0", bytes(16), 8), 8), (note(1, b"GNU\0", bytes(16)) + note(3, b"GNU\0", BUILD), 4)
)


def put(folder: Path, content: bytes, name: str = "cuda_v13") -> Path:
    path = folder / name / BACKEND_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def found(*devices: Device, driver: Driver | None = DRIVER) -> Found:
    return Found(devices, driver, "NVML")


def test_the_key_says_device_driver_backend_and_build(tmp_path: Path) -> None:
    key = jit_key(found(H100), put(tmp_path, WITH_BUILD_ID))
    assert key.about() == {
        "capability": "9.0",
        "driver": "580.95.05",
        "engine": f"cuda_v13-{BUILD.hex()}",
    }
    assert key.name.startswith("sm9.0-driver580.95.05-cuda_v13-000102")


def test_devices_of_several_kinds_share_a_key_whatever_their_order_and_number(tmp_path: Path) -> None:
    path = put(tmp_path, WITH_BUILD_ID)
    assert jit_key(found(H100, L4), path).capability == "8.9+9.0"
    assert jit_key(found(L4, H100, L4), path) == jit_key(found(H100, L4), path)
    assert jit_key(found(H100, H100), path) == jit_key(found(H100), path)


def test_another_driver_another_backend_and_another_build_are_other_keys(tmp_path: Path) -> None:
    path = put(tmp_path, WITH_BUILD_ID)
    other_build = WITH_BUILD_ID.replace(BUILD, BUILD[::-1])
    keys = {
        jit_key(found(H100), path).name,
        jit_key(found(H100, driver=Driver("580.95.06", (13, 0))), path).name,
        jit_key(found(L4), path).name,
        jit_key(found(H100), put(tmp_path, WITH_BUILD_ID, "cuda_v12")).name,
        jit_key(found(H100), put(tmp_path / "other", other_build)).name,
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (found(), "no device is visible"),
        (found(Device(0, "a GPU")), "does not tell its compute capability"),
        (found(H100, Device(1, "a GPU")), "does not tell its compute capability"),
        (found(H100, driver=None), "the driver's version is not known"),
    ],
)
def test_what_is_not_known_is_named(seen: Found, words: str, tmp_path: Path) -> None:
    with pytest.raises(NoKey, match=re.escape(words)):
        jit_key(seen, put(tmp_path, WITH_BUILD_ID))


def test_a_library_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoKey, match=rf"^{BACKEND_FILE}: No such file or directory$"):
        jit_key(found(H100), tmp_path / "cuda_v13" / BACKEND_FILE)


def test_a_library_without_a_build_id_is_told_by_its_size_and_content(tmp_path: Path) -> None:
    content = library([ptx("90")])
    build = build_of(put(tmp_path, content))
    assert build.startswith(f"{len(content)}-")
    assert build_of(put(tmp_path / "copy", content)) == build
    assert build_of(put(tmp_path / "changed", content[:-1] + b"\1")) != build
    assert build_of(put(tmp_path / "longer", content + b"\0")) != build


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"not a library",
        b"\x7fELF\x02\x01",
        WITH_BUILD_ID[:80],
        WITH_BUILD_ID[:-10],
        WITH_BUILD_ID.replace(BUILD, b""),
        WITH_BUILD_ID[:0x20] + b"\xff" * 8 + WITH_BUILD_ID[0x28:],
        WITH_BUILD_ID[:0x36] + b"\x01\0" + WITH_BUILD_ID[0x38:],
        noted((b"\xff" * 40, 4)),
        noted((note(3, b"XYZ\0", BUILD), 4)),
    ],
)
def test_a_damaged_library_has_a_build_all_the_same(damaged: bytes, tmp_path: Path) -> None:
    assert build_of(put(tmp_path, damaged))
    assert jit_key(found(H100), put(tmp_path, damaged)).engine.startswith("cuda_v13-")


def test_the_build_id_is_the_one_readelf_tells() -> None:
    program = Path(sys.executable).resolve()
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    told = subprocess.run([readelf, "-n", str(program)], capture_output=True, text=True, check=True).stdout
    wanted = re.search(r"Build ID: ([0-9a-f]+)", told)
    if wanted is None:
        pytest.skip("this Python was linked without a build ID")
    assert build_of(program) == wanted[1]


def test_a_library_of_gigabytes_is_not_read_through(tmp_path: Path) -> None:
    path = put(tmp_path, b"no ELF file")
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    began_s = time.process_time()
    assert build_of(path).startswith(f"{1 << 40}-")
    # Reading it would take minutes of processor time.
    assert time.process_time() - began_s < 5
