"""The Hub's files against the code they speak of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from worker import environment, hub, job
from worker.config import Config, load, variables

ROOT = Path(__file__).resolve().parents[2]
PLATFORM = {"RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1/job-take"}
# Compute capabilities of what Runpod puts into each pool (its documentation of GPU types).
POOLS = {
    "AMPERE_16": {"8.6", "8.9"},
    "AMPERE_24": {"8.6", "8.9"},
    "ADA_24": {"8.9"},
    "ADA_32_PRO": {"12.0"},
    "AMPERE_48": {"8.6"},
    "ADA_48_PRO": {"8.9", "12.0"},
    "AMPERE_80": {"8.0"},
    "ADA_80_PRO": {"9.0"},
    "HOPPER_141": {"9.0"},
    "BLACKWELL_96": {"12.0"},
    "BLACKWELL_180": {"10.0"},
}


def read(name: str) -> dict[str, Any]:
    return json.loads((ROOT / ".runpod" / name).read_text(encoding="utf-8"))


HUB, TESTS = read("hub.json"), read("tests.json")
FORM = {entry["key"]: entry["input"] for entry in hub.inputs()}


def test_the_form_is_what_the_code_says() -> None:
    text = (ROOT / ".runpod/hub.json").read_text(encoding="utf-8")

    assert hub.refreshed(text) == text


def test_refreshing_replaces_the_variables_and_nothing_else() -> None:
    old = {"title": "Ünïcode", "config": {"gpuCount": 1, "env": [{"key": "STALE", "value": "1"}], "presets": []}}

    new = json.loads(hub.refreshed(json.dumps(old)))

    assert new["config"]["env"] == hub.inputs()
    assert {**new, "config": {**new["config"], "env": None}} == {**old, "config": {**old["config"], "env": None}}


def test_every_variable_is_read_by_the_worker_or_given_to_the_server() -> None:
    read_by_worker = {name for names in variables().values() for name in names}
    given_to_server = {setting.name for setting in environment.settings({})}

    assert set(FORM) <= read_by_worker | given_to_server
    assert len(FORM) == len(hub.inputs())


def test_every_setting_of_a_user_is_offered_under_its_first_name() -> None:
    hidden = {"host", "server_command", "volume"}
    theirs = {
        names[0]
        for field, names in variables().items()
        if field not in hidden and not str(Config.model_fields[field].description).startswith("Set by")
    }

    assert theirs <= set(FORM)
    assert not {"RUNPOD_WEBHOOK_GET_JOB", "WORKER_START_NS", "OLLAMA_MODEL_NAME", "MODEL_NAME"} & set(FORM)


def test_the_defaults_of_the_form_change_nothing() -> None:
    filled = {key: typed(given, given["default"]) for key, given in FORM.items() if "default" in given}

    assert load({**PLATFORM, **filled}) == load(PLATFORM)
    plain = environment.server_environment(PLATFORM)
    assert plain.items() <= environment.server_environment({**PLATFORM, **filled}).items()


def typed(given: dict[str, Any], value: Any) -> str:
    """Return a form's value as the variable the platform sets."""
    if given["type"] == "boolean":
        return str(given["trueValue"] if value else given["falseValue"])
    return str(value)


@pytest.mark.parametrize("key", [key for key, given in FORM.items() if given["type"] == "boolean"])
def test_a_ticked_box_is_understood(key: str) -> None:
    (field,) = (field for field, names in variables().items() if key in names)

    for ticked in (True, False):
        assert getattr(load({**PLATFORM, key: typed(FORM[key], ticked)}), field) is ticked


def test_every_choice_is_understood() -> None:
    choices = {
        key: [option["value"] for option in given["options"]] for key, given in FORM.items() if "options" in given
    }

    assert choices
    for key, values in choices.items():
        for value in values:
            assert load({**PLATFORM, key: value})


@pytest.mark.parametrize("key", list(FORM))
def test_an_input_reads_well(key: str) -> None:
    given = FORM[key]

    assert given["type"] in {"string", "number", "boolean", "huggingface"}
    assert re.fullmatch(r"[A-Z][\w ]*( \(seconds\)| \(milliseconds\))?", given["name"])
    assert "`" not in given["description"]
    assert given["description"].endswith(".")


@pytest.mark.parametrize("preset", HUB["config"]["presets"], ids=lambda preset: preset["name"])
def test_a_preset_sets_only_what_the_form_offers(preset: dict[str, Any]) -> None:
    assert set(preset["defaults"]) <= set(FORM)
    assert load({**PLATFORM, **preset["defaults"]}).model == preset["defaults"]["OLLAMA_MODEL"]


def test_no_offered_gpu_needs_its_kernels_compiled() -> None:
    (targets,) = re.findall(r'^ARG CUDA_TARGETS="(.*)"$', (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    offered = set().union(*(POOLS[pool] for pool in HUB["config"]["gpuIds"].split(",")))

    assert offered <= set(targets.split())


def test_no_host_is_left_out_by_a_list_of_cuda_versions() -> None:
    # A list goes stale and then shuts out hosts that work; a driver that is too old is named by the worker itself.
    assert "allowedCudaVersions" not in HUB["config"]
    assert "allowedCudaVersions" not in TESTS["config"]


def test_the_hub_finds_what_it_asks_for() -> None:
    assert (HUB["type"], HUB["category"], HUB["config"]["runsOn"]) == ("serverless", "language", "GPU")
    for name in ("handler.py", "Dockerfile"):
        assert (ROOT / name).is_file()


@pytest.mark.parametrize("case", TESTS["tests"], ids=lambda case: case["name"])
def test_a_test_of_the_hub_is_a_job_this_worker_takes(case: dict[str, Any]) -> None:
    model = TESTS["config"]["env"][0]["value"]

    request = job.parse(case["input"], default_model=model)

    assert request.model in {model, ""}
    assert case["timeout"] >= 60_000


def test_the_hubs_tests_cover_every_shape_of_a_job() -> None:
    shapes = {job.parse(case["input"], default_model="m").shape for case in TESTS["tests"]}

    assert shapes == set(job.Shape)


def test_the_hubs_tests_set_only_what_the_worker_reads() -> None:
    assert {entry["key"] for entry in TESTS["config"]["env"]} <= set(FORM)
