"""The ladder from a stock start to this worker: what each rung brings, and what it says when it cannot be measured."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from bench.cold_start.rungs import NAMES, OFF, RUNGS, Host, Rung, Step, ladder
from worker.config import variables
from worker.environment import settings

EVERYTHING = Host("Ollama", lambda _: True, projector=True, gpu="", outcome="jit", runner="", store="")
NOTHING = Host(
    "the local engine",
    lambda _: False,
    projector=False,
    gpu="no NVIDIA device is visible",
    outcome="",
    runner="nothing to tell",
    store="the store is local",
)


def steps(host: Host, given: dict[str, dict[str, str]] | None = None) -> dict[str, Step]:
    return {step.rung.name: step for step in ladder(host, given or {})}


def test_the_first_rungs_have_nothing_of_ours_and_the_last_has_everything() -> None:
    found = steps(EVERYTHING)
    assert not any(step.obstacle for step in found.values())
    every_knob = {name for rung in RUNGS for name in rung.knobs}
    assert set(found["stock"].withheld) == set(found["structure"].withheld) == every_knob
    assert found["stock"].settings == found["structure"].settings == OFF
    assert found["jit-warm"].withheld == ()
    assert found["jit-warm"].settings == {
        "OLLAMA_SKIP_MMPROJ": "1",
        "WORKER_LANDING": "1",
        "WORKER_JIT_CACHE": "direct",
    }


def test_every_rung_adds_to_the_one_before() -> None:
    found = list(steps(EVERYTHING).values())
    assert [step.number for step in found] == list(range(1, len(RUNGS) + 1))
    for before, after in itertools.pairwise(found):
        assert set(after.withheld) <= set(before.withheld)
        assert (after.withheld, after.settings) != (before.withheld, before.settings) or after.rung.name in {
            "structure",
            "jit-warm",
        }


def test_only_the_first_is_in_the_stock_order_and_only_the_last_keeps_its_kernels() -> None:
    assert [rung.name for rung in RUNGS if rung.stock_order] == ["stock"]
    assert [rung.name for rung in RUNGS if rung.keeps_kernels] == ["jit-warm"]


def test_what_a_bare_machine_cannot_show_has_its_reason() -> None:
    reasons = {name: step.obstacle for name, step in steps(NOTHING).items()}
    assert reasons == {
        "stock": "",
        "structure": "",
        "warm-up": "the local engine does not know OLLAMA_SKIP_WARMUP",
        "projector": "the local engine does not know OLLAMA_SKIP_MMPROJ",
        "poll": "the local engine does not know OLLAMA_LOAD_POLL_MS",
        "backend": "no NVIDIA device is visible",
        "runner": "nothing to tell",
        "landing": "the store is local",
        "jit-cold": "no NVIDIA device is visible",
        "jit-warm": "no NVIDIA device is visible",
    }


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"projector": False}, "projector", "the model has no projector"),
        ({"outcome": "native"}, "jit-cold", "machine code for this device"),
        ({"outcome": "native"}, "jit-warm", "machine code for this device"),
        ({"store": "the store is local"}, "landing", "the store is local"),
    ],
)
def test_what_is_missing_stops_its_rung_and_no_other(change: dict, name: str, words: str) -> None:
    found = steps(dataclasses.replace(EVERYTHING, **change))
    assert words in found[name].obstacle
    others = [step.obstacle for other, step in found.items() if other.partition("-")[0] != name.partition("-")[0]]
    assert not any(others)


def test_a_rung_that_cannot_run_brings_nothing_to_those_after_it() -> None:
    found = steps(dataclasses.replace(EVERYTHING, projector=False, store="the store is local"))
    last = found["jit-warm"]
    assert last.settings == {"WORKER_LANDING": "0", "WORKER_JIT_CACHE": "direct"}
    assert last.withheld == ("OLLAMA_CACHE_IS_FREE",)


def test_more_can_be_given_to_a_rung_and_is_kept_from_there_on() -> None:
    found = steps(
        EVERYTHING, {"backend": {"OLLAMA_LLM_LIBRARY": "cuda_v13"}, "jit-cold": {"WORKER_JIT_CACHE": "mirror"}}
    )
    assert "OLLAMA_LLM_LIBRARY" not in found["poll"].settings
    assert found["landing"].settings["OLLAMA_LLM_LIBRARY"] == "cuda_v13"
    assert found["jit-warm"].settings["WORKER_JIT_CACHE"] == "mirror"


def test_every_name_is_one_the_worker_reads_or_sets() -> None:
    ours = {name for names in variables().values() for name in names}
    assert ours >= {*OFF, *(name for rung in RUNGS for name in rung.gives)}
    set_by_us = {setting.name for setting in settings({})} | {
        "OLLAMA_LLM_LIBRARY",
        "LLAMA_ARG_FIT",
        "LLAMA_ARG_THREADS",
    }
    assert set_by_us >= {name for rung in RUNGS for name in rung.knobs}
    assert len(set(NAMES)) == len(RUNGS)


def test_a_rung_is_data() -> None:
    mine = Rung(
        "mine", "+ mine", gives={"X": "1"}, knobs=("Y",), obstacle=lambda host: "" if host.projector else "blind"
    )
    first, second = ladder(EVERYTHING, {}, [RUNGS[0], mine])
    assert (first.withheld, second.withheld) == (("Y",), ())
    assert second.settings == {**OFF, "X": "1"}
    assert [step.obstacle for step in ladder(NOTHING, {}, [mine])] == ["blind"]
