"""What a boot knows before its configuration is checked: which model outranks which, the stores, the address."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.config import load
from worker.folders import BAKED
from worker.names import NameInvalid
from worker.outset import outset
from worker.references import DEFAULT_MODEL

HF_OUTRANKS = "HF_MODEL is set: OLLAMA_MODEL='smol:135m' is ignored"
LIST_OUTRANKS = [
    "WORKER_MODELS is set: HF_MODEL='org/repo' is ignored",
    "WORKER_MODELS is set: OLLAMA_MODEL='smol:135m' is ignored",
]


@pytest.mark.parametrize(
    ("environ", "resident", "others", "notes"),
    [
        ({}, DEFAULT_MODEL, [], []),
        ({"OLLAMA_MODEL": " ", "OLLAMA_MODEL_NAME": "\t"}, DEFAULT_MODEL, [], []),
        ({"OLLAMA_MODEL_NAME": "old:1b"}, "old:1b", [], []),
        ({"OLLAMA_MODEL": " smol:135m ", "OLLAMA_MODEL_NAME": "old:1b"}, "smol:135m", [], []),
        ({"OLLAMA_MODEL": "smol:135m", "HF_MODEL": "org/repo"}, "hf/org-repo:latest", [], [HF_OUTRANKS]),
        ({"HF_MODEL": "org/repo", "HF_QUANTIZATION": "q8_0"}, "hf/org-repo:q8_0", [], []),
        ({"HF_MODEL": "org/repo", "HF_MODEL_FILE": "M-Q6_K.gguf"}, "hf/org-repo:q6_k", [], []),
        (
            {"OLLAMA_MODEL": "smol:135m", "HF_QUANTIZATION": "Q8_0"},
            "smol:135m",
            [],
            ["HF_MODEL is not set: HF_QUANTIZATION is ignored"],
        ),
        (
            {"WORKER_MODELS": "a:1b, b:1b\nc:1b", "HF_MODEL": "org/repo", "OLLAMA_MODEL": "smol:135m"},
            "a:1b",
            ["b:1b", "c:1b"],
            LIST_OUTRANKS,
        ),
        ({"OLLAMA_MODEL": "s3://bucket/m-Q4_0.gguf"}, "s3/bucket-m:q4_0", [], []),
    ],
)
def test_one_model_is_resident_and_what_it_outranks_is_told(
    environ: dict[str, str], resident: str, others: list[str], notes: list[str]
) -> None:
    start = outset(environ)
    assert start.wanted.name.short == resident
    assert [other.name.short for other in start.others] == others
    assert list(start.notes) == notes


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"OLLAMA_MODEL": "a b"}, "OLLAMA_MODEL"),
        ({"OLLAMA_MODEL": "smol", "HF_MODEL": "no-repository"}, "HF_MODEL"),
        ({"WORKER_MODELS": "fine:1b, bad::"}, "WORKER_MODELS"),
        ({"WORKER_MODELS": "/"}, "WORKER_MODELS"),
    ],
)
def test_a_name_that_cannot_be_understood_is_told_with_its_variable(environ: dict[str, str], named: str) -> None:
    with pytest.raises(NameInvalid, match=f"^{named}: "):
        outset(environ)


def test_a_mistake_in_a_variable_that_is_outranked_is_none() -> None:
    assert outset({"HF_MODEL": "org/repo", "OLLAMA_MODEL": "a b"}).wanted.repo == "org/repo"


@pytest.mark.parametrize("word", ["1", "t", "T", "true", "True", "TRUE", "0", "f", "False", "", " "])
def test_how_a_model_is_to_be_registered_is_read_as_the_configuration_reads_it(word: str) -> None:
    environ = {"WORKER_MODELS": "a:1b b:1b", "OLLAMA_SKIP_MMPROJ": word, "OLLAMA_TEMPLATE": "{{ .Prompt }}\n"}
    start = outset(environ)
    config = load({**environ, "RUNPOD_WEBHOOK_GET_JOB": "http://x"})
    for model in (start.wanted, *start.others):
        assert model.skip_projector is config.skip_projector
        # Blanks and line ends belong to a template.
        assert model.template == "{{ .Prompt }}\n"


def test_a_blank_template_is_none() -> None:
    assert outset({"OLLAMA_TEMPLATE": " \n"}).wanted.template == ""


def test_stores_are_searched_in_order_and_the_workers_own_things_are_at_home() -> None:
    start = outset({"HOME": "/elsewhere", "WORKER_VOLUME": "/vol", "OLLAMA_MODELS": "/mine"})
    assert start.stores == (Path("/mine"), BAKED, Path("/vol/ollama/models"), Path("/elsewhere/.ollama/models"))
    assert start.home == Path("/elsewhere/.ollama")
