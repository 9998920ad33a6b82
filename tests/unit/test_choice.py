"""The backend that is set, for one device and several, one driver and a fleet of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.cuda_library import library, ptx, sass
from worker.backend import Backend
from worker.choice import Choice, choose, missing_targets, upstream_choice
from worker.device import Capability, Device, Driver, Found
from worker.errors import GpuUnusable
from worker.fatbin import parse
from worker.verdict import Outcome, Verdict

H100, L4, B300, P40 = (9, 0), (8, 9), (10, 3), (6, 1)
NAMES = {H100: "NVIDIA H100", L4: "NVIDIA L4", B300: "NVIDIA B300", P40: "Tesla P40"}
MEGABYTE = 1_000_000


def made(name: str, runtime: tuple[int, int], *modules: list[bytes]) -> Backend:
    return Backend(name, parse(library(*modules), name), runtime)


# What Ollama ships: v12 with machine code (and PTX beside it), v13 with PTX alone.
V12 = made("cuda_v12", (12, 8), [ptx("52"), ptx("61"), sass("80"), sass("89"), sass("90"), sass("90a"), ptx("90")])
V13 = made("cuda_v13", (13, 0), *[[ptx(a, version=(9, 0), size=MEGABYTE) for a in ("80", "89", "90", "103")]] * 4)
SHIPPED = [V12, V13]


def machine(driver: str | None, *capabilities: Capability | None) -> Found:
    devices = (Device(i, NAMES.get(c, "?") if c else "?", f"GPU-{i}", c) for i, c in enumerate(capabilities))
    return Found(tuple(devices), Driver(driver) if driver else None, "test")


def test_native_code_wins_over_the_variant_ollama_would_compile() -> None:
    choice = choose(SHIPPED, machine("580.95.05", H100))
    assert (choice.backend, choice.outcome, choice.upstream) == ("cuda_v12", "native", "cuda_v13")
    assert choice.reason == (
        "native code for every device; Ollama by itself would take cuda_v13, which compiles up to 4 MB of PTX first"
    )
    assert [verdict.outcome for verdict in choice.verdicts["cuda_v13"]] == ["jit"]


def test_where_ollama_agrees_nothing_is_compared() -> None:
    choice = choose(SHIPPED, machine("550.127.05", H100))
    assert (choice.backend, choice.upstream, choice.reason) == ("cuda_v12", "cuda_v12", "native code for every device")


@pytest.mark.parametrize("driver", ["550.54.15", "565.57.01", "570.86.15", "580.65.06", "590.44.01", "999.1", None])
def test_a_fleet_of_mixed_drivers_makes_one_choice(driver: str | None) -> None:
    assert choose(SHIPPED, machine(driver, H100)).backend == "cuda_v12"
    both_native = [V12, made("cuda_v13", (13, 0), [sass("90")])]
    assert choose(both_native, machine(driver, H100)).backend == "cuda_v12"
    named_otherwise = [made("a", (13, 0), [sass("90")]), made("b", (12, 8), [sass("90")])]
    assert choose(named_otherwise, machine(driver, H100)).backend == "b"


codes = st.lists(
    st.sampled_from([sass("80"), sass("90"), sass("90", compression="zstd"), ptx("80"), ptx("90", version=(9, 0))]),
    min_size=1,
    max_size=3,
)
backends = st.builds(
    lambda number, minor, modules: made(f"cuda_v{number}", (number, minor), *modules),
    st.integers(11, 14),
    st.integers(0, 9),
    st.lists(codes, min_size=1, max_size=2),
)


@given(
    st.lists(backends, min_size=1, max_size=4, unique_by=lambda backend: backend.name),
    st.lists(st.integers(440, 620), min_size=2, max_size=2),
    st.sampled_from([H100, (8, 0)]),
)
def test_once_a_choice_is_native_every_newer_driver_makes_the_same(
    offered: list[Backend], branches: list[int], capability: Capability
) -> None:
    older, newer = (choose(offered, machine(f"{branch}.1", capability)) for branch in sorted(branches))
    if older.outcome == "native":
        assert newer.backend == older.backend


@given(st.lists(backends, min_size=1, max_size=4, unique_by=lambda backend: backend.name), st.integers(440, 620))
def test_no_backend_is_better_than_the_chosen_one(offered: list[Backend], branch: int) -> None:
    choice = choose(offered, machine(f"{branch}.1", H100))
    outcomes = {row[0].outcome for row in choice.verdicts.values()}
    best = next(outcome for outcome in ("native", "jit", "unusable") if outcome in outcomes)
    assert choice.outcome == best
    assert bool(choice.backend) == (best != "unusable")


def test_where_only_ptx_fits_it_is_taken_and_its_price_is_named() -> None:
    choice = choose([V13], machine("580.95.05", H100)).require_usable()
    assert (choice.backend, choice.outcome, choice.upstream) == ("cuda_v13", "jit", "cuda_v13")
    for told in ("only from PTX", "up to 4 modules", "4 MB of PTX", "about 5 s of one core", "the JIT cache keeps"):
        assert told in choice.reason


def test_a_device_only_the_ptx_variant_was_compiled_for_takes_that_one() -> None:
    choice = choose(SHIPPED, machine("580.95.05", B300))
    assert (choice.backend, choice.outcome, choice.upstream) == ("cuda_v13", "jit", "cuda_v13")


def test_one_device_that_has_to_compile_makes_the_choice_a_jit_choice() -> None:
    choice = choose([made("cuda_v12", (12, 8), [sass("90"), ptx("89")])], machine("580.95.05", H100, L4))
    assert [verdict.outcome for verdict in choice.verdicts["cuda_v12"]] == ["native", "jit"]
    assert choice.outcome == "jit"


def test_native_for_some_devices_loses_to_running_on_all_of_them() -> None:
    choice = choose(SHIPPED, machine("580.95.05", H100, B300))
    assert (choice.backend, choice.outcome) == ("cuda_v13", "jit")
    assert choice.upstream == "cuda_v12"  # unequal sets: Ollama ends at the last name


def test_where_no_backend_serves_all_devices_the_one_that_serves_most_is_taken() -> None:
    only_hopper = made("cuda_v12", (12, 8), [sass("90")])
    choice = choose([only_hopper], machine("580.95.05", H100, L4, H100)).require_usable()
    assert (choice.backend, choice.outcome, choice.reason) == ("cuda_v12", "native", "native code for 2 of 3 devices")


def test_an_old_driver_is_a_matter_of_hosts_and_not_of_the_image() -> None:
    with pytest.raises(GpuUnusable) as caught:
        choose(SHIPPED, machine("535.183.01", H100)).require_usable()
    assert caught.value.message == (
        "no kernel runs on the devices here: "
        "cuda_v12 on NVIDIA H100 (9.0): needs driver 550 or newer, this is 535.183.01; "
        "cuda_v13 on NVIDIA H100 (9.0): needs driver 580 or newer, this is 535.183.01"
    )
    assert caught.value.hint.startswith("Use hosts with driver 550 or newer")
    assert caught.value.exit_code == 11


def test_a_driver_too_old_for_the_code_alone_is_told_by_its_cuda_version() -> None:
    newest = [made("cuda_v12", (12, 8), [ptx("90", version=(8, 7))])]
    with pytest.raises(GpuUnusable, match=r"needs a driver for CUDA 12\.8") as caught:
        choose(newest, machine("550.127.05", H100)).require_usable()
    assert caught.value.hint.startswith("Use hosts with a driver for that CUDA version")


def test_a_device_nothing_was_compiled_for_is_a_matter_of_the_image() -> None:
    with pytest.raises(GpuUnusable) as caught:
        choose(SHIPPED, machine("580.95.05", (12, 0))).require_usable()
    assert 'CUDA_TARGETS="12.0"' in caught.value.hint
    assert "CUDA_VARIANTS" in caught.value.hint


def test_a_legacy_device_needs_the_newer_driver_of_its_ptx() -> None:
    assert choose(SHIPPED, machine("565.57.01", P40)).outcome == "unusable"
    choice = choose(SHIPPED, machine("570.86.15", P40))
    assert (choice.backend, choice.outcome) == ("cuda_v12", "jit")


def test_without_a_device_everything_that_was_tried_is_named() -> None:
    with pytest.raises(
        GpuUnusable, match=r"no NVIDIA device is visible \(NVML: is not here; nvidia-smi: no\)"
    ) as caught:
        choose(SHIPPED, Found((), None, "", ("NVML: is not here", "nvidia-smi: no"))).require_usable()
    assert "--gpus all" in caught.value.hint


def test_an_image_without_backends_says_what_to_build() -> None:
    with pytest.raises(GpuUnusable, match="has no CUDA backend") as caught:
        choose([], machine("580.95.05", H100)).require_usable()
    assert "CUDA_VARIANTS" in caught.value.hint


def test_a_device_that_does_not_tell_its_capability_leaves_the_choice_to_ollama() -> None:
    choice = choose(SHIPPED, machine("580.95.05", None)).require_usable()
    assert (choice.backend, choice.outcome, choice.upstream) == ("", "unknown", "cuda_v13")


def test_what_the_user_set_stands_even_where_it_costs() -> None:
    choice = choose(SHIPPED, machine("580.95.05", H100), "cuda_v13")
    assert (choice.backend, choice.outcome) == ("cuda_v13", "jit")
    assert choice.reason.startswith("set by you; runs on every device, but only from PTX")


def test_what_the_user_misspelt_would_silently_mean_the_cpu() -> None:
    with pytest.raises(GpuUnusable, match="OLLAMA_LLM_LIBRARY=cuda_v14 names no CUDA backend") as caught:
        choose(SHIPPED, machine("580.95.05", H100), "cuda_v14").require_usable()
    assert "there is: cuda_v12, cuda_v13" in caught.value.message


def test_what_the_user_set_and_cannot_run_is_refused_with_what_would_run() -> None:
    with pytest.raises(GpuUnusable, match="cuda_v13 on NVIDIA H100") as caught:
        choose(SHIPPED, machine("550.127.05", H100), "cuda_v13").require_usable()
    assert caught.value.hint == "Unset OLLAMA_LLM_LIBRARY: cuda_v12 runs here."


def row(listed: str) -> tuple[Verdict, ...]:
    """Return verdicts for devices of which those marked `x` are in Ollama's list."""
    outcomes: dict[str, Outcome] = {"x": "native", "-": "unusable"}
    return tuple(Verdict(outcomes[mark], "", listed=mark == "x") for mark in listed)


@pytest.mark.parametrize(
    ("listed", "kept"),
    [
        ({"cuda_v12": "x", "cuda_v13": "x"}, "cuda_v13"),
        ({"cuda_v12": "xx", "cuda_v13": "xx"}, "cuda_v13"),
        ({"cuda_v12": "x", "cuda_v13": "-"}, "cuda_v12"),
        ({"cuda_v12": "-", "cuda_v13": "x"}, "cuda_v13"),
        ({"cuda_v12": "x-", "cuda_v13": "xx"}, "cuda_v12"),
        ({"cuda_v12": "x-", "cuda_v13": "-x"}, "cuda_v12"),
        ({"cuda_v11": "xx", "cuda_v12": "xx", "cuda_v13": "x-"}, "cuda_v11"),
        ({"cuda_v12": "-", "cuda_v13": "-"}, ""),
        ({}, ""),
    ],
)
def test_ollamas_own_choice_goes_by_name_and_by_the_devices_each_backend_lists(
    listed: dict[str, str], kept: str
) -> None:
    assert upstream_choice({name: row(marks) for name, marks in listed.items()}) == kept


def test_every_declared_target_with_native_code_is_no_problem() -> None:
    assert missing_targets(SHIPPED, ["8.0", "89", "9.0", "90a"]) == []


def test_a_declared_target_without_native_code_is_a_problem() -> None:
    jit, absent, misspelt = missing_targets(SHIPPED, ["9.0", "10.3", "12.0", "hopper"])
    assert jit.startswith("no native code for 10.3: runs on every device, but only from PTX")
    assert absent.startswith("no native code for 12.0: no kernel runs on")
    assert misspelt == "'hopper' is no compute capability: write 9.0 or 90"


def test_an_image_without_backends_misses_every_target() -> None:
    assert missing_targets([], ["9.0"]) == ["no native code for 9.0: the image has no CUDA backend"]


def test_a_usable_choice_is_returned_as_it_is() -> None:
    choice = choose(SHIPPED, machine("550.127.05", H100))
    assert choice.require_usable() is choice
    assert isinstance(choice, Choice)
