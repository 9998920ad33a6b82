"""Which code runs on which device, under which driver."""

from __future__ import annotations

import pytest

from tests.fakes.cuda_library import library, ptx, sass
from worker.backend import Backend
from worker.device import Capability, Driver, capability_of
from worker.fatbin import Architecture, parse
from worker.verdict import cuda_of_ptx, judge, runs_sass, takes_ptx

NEW = Driver("580.95.05", (13, 0))


def backend(*modules: list[bytes], runtime: tuple[int, int] | None = (12, 8)) -> Backend:
    return Backend("cuda_v12", parse(library(*modules), "x.so"), runtime)


def architecture(text: str) -> Architecture:
    return Architecture(*capability_of(text), text.lstrip("0123456789"))


def device(text: str) -> Capability:
    return capability_of(text)


@pytest.mark.parametrize(
    ("code", "runs_on", "fails_on"),
    [
        ("80", ["8.0", "8.6", "8.9"], ["7.5", "9.0", "10.0", "12.0"]),
        ("86", ["8.6", "8.9"], ["8.0", "9.0"]),
        ("90", ["9.0"], ["8.9", "10.0"]),
        ("100", ["10.0", "10.3"], ["9.0", "12.0"]),
        ("90a", ["9.0"], ["8.9", "10.0"]),
        ("100a", ["10.0"], ["10.3"]),
        ("120a", ["12.0"], ["12.1"]),
        ("100f", ["10.0", "10.3"], ["9.0", "11.0", "12.0"]),
        ("103f", ["10.3"], ["10.0"]),
        ("120f", ["12.0", "12.1"], ["10.3"]),
        ("80", ["8.0"], ["8.7"]),  # Orin is integrated: it shares no machine code with discrete parts
        ("87", ["8.7"], ["8.9"]),
        ("100", ["10.0"], ["10.1"]),
    ],
)
def test_machine_code_runs_on_its_own_major_version_from_its_minor_on(
    code: str, runs_on: list[str], fails_on: list[str]
) -> None:
    assert [target for target in runs_on if not runs_sass(architecture(code), device(target))] == []
    assert [target for target in fails_on if runs_sass(architecture(code), device(target))] == []


@pytest.mark.parametrize(
    ("code", "taken_by", "refused_by"),
    [
        ("75", ["7.5", "8.0", "8.7", "9.0", "12.1"], ["7.0", "6.1"]),
        ("90", ["9.0", "10.0", "12.0"], ["8.9"]),
        ("90a", ["9.0"], ["8.9", "10.0", "12.0"]),
        ("100f", ["10.0", "10.3"], ["9.0", "12.0"]),
    ],
)
def test_ptx_is_taken_by_every_newer_device_unless_it_is_specific(
    code: str, taken_by: list[str], refused_by: list[str]
) -> None:
    assert [target for target in taken_by if not takes_ptx(architecture(code), device(target))] == []
    assert [target for target in refused_by if takes_ptx(architecture(code), device(target))] == []


@pytest.mark.parametrize(
    ("version", "cuda"),
    [((7, 8), (11, 8)), ((8, 4), (12, 4)), ((8, 6), (12, 7)), ((8, 7), (12, 8)), ((9, 0), (13, 0)), ((9, 5), (13, 5))],
)
def test_a_ptx_language_belongs_to_a_cuda_version(version: tuple[int, int], cuda: tuple[int, int]) -> None:
    assert cuda_of_ptx(version) == cuda


def test_machine_code_in_every_module_is_native() -> None:
    verdict = judge(backend([sass("80"), sass("90")], [sass("90a"), ptx("90")]), (9, 0), NEW)
    assert (verdict.outcome, verdict.reason) == ("native", "SASS in 2 of 2 modules")
    assert verdict.jit_bytes == verdict.jit_modules == 0


def test_one_module_without_machine_code_makes_it_a_jit_backend() -> None:
    verdict = judge(backend([sass("90")], [ptx("80", size=1_000_000), ptx("90", size=2_000_000)]), (9, 0), NEW)
    assert verdict.outcome == "jit"
    assert verdict.reason == "PTX only (compute_90) in 1 of 2 modules"
    assert (verdict.jit_modules, verdict.jit_bytes) == (1, 2_000_000)
    assert 2 < verdict.jit_seconds < 3


def test_one_module_without_any_code_for_the_device_makes_it_unusable() -> None:
    verdict = judge(backend([sass("90")], [sass("100f")]), (9, 0), NEW)
    assert (verdict.outcome, verdict.listed) == ("unusable", True)
    assert verdict.reason == "1 of 2 modules have neither SASS nor PTX for it"


def test_ptx_newer_than_the_driver_is_unusable_although_ollama_would_try() -> None:
    verdict = judge(backend([ptx("90", version=(9, 1))]), (9, 0), Driver("580.95.05", (13, 0)))
    assert (verdict.outcome, verdict.listed) == ("unusable", True)
    assert verdict.reason == "only PTX, and it needs a driver for CUDA 13.1, this is 580.95.05 (CUDA 13.0)"
    assert judge(backend([ptx("90", version=(9, 1))]), (9, 0), Driver("590.1")).outcome == "jit"


def test_the_language_of_ptx_does_not_matter_where_machine_code_fits() -> None:
    assert judge(backend([sass("90"), ptx("90", version=(9, 5))]), (9, 0), Driver("550.54.15")).outcome == "native"


def test_ollama_skips_a_device_that_was_not_compiled_for_even_if_the_code_would_run() -> None:
    verdict = judge(backend([sass("100"), ptx("100")]), (10, 3), NEW)
    assert (verdict.outcome, verdict.listed) == ("unusable", False)
    assert verdict.reason == "not compiled for 10.3: Ollama skips the device, although its code would run"
    assert judge(backend([sass("90")]), (10, 3), NEW).reason == "not compiled for 10.3: Ollama skips the device"


@pytest.mark.parametrize(
    ("runtime", "capability", "driver", "usable"),
    [
        ((12, 8), (9, 0), "550.54.15", True),
        ((12, 8), (9, 0), "545.23.08", False),
        ((12, 2), (9, 0), "545.23.08", True),
        ((12, 2), (9, 0), "520.61.05", False),
        ((13, 0), (9, 0), "575.57.08", False),
        ((13, 0), (9, 0), "580.65.06", True),
        ((12, 8), (6, 1), "565.57.01", False),
        ((12, 8), (6, 1), "570.86.15", True),
        ((12, 9), (6, 1), "565.57.01", False),
        ((12, 6), (6, 1), "565.57.01", True),
        (None, (9, 0), "450.80.02", True),
    ],
)
def test_the_driver_has_a_floor_for_the_runtime_and_for_old_devices(
    runtime: tuple[int, int] | None, capability: Capability, driver: str, *, usable: bool
) -> None:
    verdict = judge(backend([sass("61"), sass("90")], runtime=runtime), capability, Driver(driver))
    assert (verdict.outcome == "native") is usable
    assert verdict.listed is usable
    if not usable:
        assert driver in verdict.reason


def test_code_packed_with_zstd_needs_a_driver_that_can_unpack_it() -> None:
    packed = backend([sass("90", compression="zstd")], runtime=None)
    assert judge(packed, (9, 0), Driver("545.23.08")).reason == "needs driver 550 or newer, this is 545.23.08"
    assert judge(packed, (9, 0), Driver("550.54.15")).outcome == "native"


def test_an_unknown_driver_counts_as_new_enough() -> None:
    assert judge(backend([ptx("90", version=(9, 5))], runtime=(13, 5)), (9, 0), None).outcome == "jit"


def test_an_unknown_device_cannot_be_judged_but_the_driver_can() -> None:
    assert judge(backend([sass("90")]), None, NEW).outcome == "unknown"
    assert judge(backend([sass("90")]), None, Driver("535.1")).outcome == "unusable"


def test_a_library_that_cannot_be_read_or_has_no_code_is_unusable() -> None:
    broken = judge(Backend("cuda_v12", problem="cannot be read: damaged"), (9, 0), NEW)
    assert (broken.outcome, broken.reason, broken.listed) == ("unusable", "cannot be read: damaged", False)
    assert judge(backend(), (9, 0), NEW).reason == "the library carries no GPU code"
