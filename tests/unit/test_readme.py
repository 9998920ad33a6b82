"""The README's generated blocks are those the code makes now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from worker import job, openai_extension, readme
from worker.config import Config
from worker.errors import BootError, JobError, WorkerError
from worker.fields import FIELDS
from worker.local.process import ROOT
from worker.shapes import SHAPES

RESULTS = ROOT / "bench" / "results"
BLOCK = "before\n<!-- generated: {} -->\nold\n<!-- end -->\nafter\n"


@pytest.mark.parametrize("page", ["README.md", "docs/figures.md"])
def test_generated_blocks_are_fresh(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert readme.refreshed(text, RESULTS) == text, "run: python -m worker readme"


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 250


def test_a_block_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    text = readme.refreshed(BLOCK.format("errors"), tmp_path)
    assert text.startswith("before\n<!-- generated: errors -->\n| failure |")
    assert text.endswith("|\n<!-- end -->\nafter\n")
    assert "old" not in text
    assert readme.refreshed(text, tmp_path) == text


def test_an_unknown_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="weather"):
        readme.refreshed(BLOCK.format("weather"), tmp_path)


def test_every_variable_a_person_may_set_has_a_row() -> None:
    table = readme.configuration()
    for name, field in Config.model_fields.items():
        set_by_others = str(field.description).startswith("Set by")
        assert (str(field.description) in table) is not set_by_others, name


def test_every_failure_has_a_row_with_its_exit_code_or_status() -> None:
    table = readme.errors()
    stack: list[type[WorkerError]] = [WorkerError]
    while stack:
        kind = stack.pop()
        stack += kind.__subclasses__()
        if kind in {WorkerError, BootError, JobError}:
            continue
        (row,) = [line for line in table.splitlines() if line.startswith(f"| `{kind.__name__}` ")]
        if issubclass(kind, BootError):
            assert f"exits with {kind.exit_code} " in row
        assert ("Worth a retry" in row) is kind.retryable


@pytest.mark.parametrize("block", ["boot", "cold_start", "proxy", "landing"])
def test_figures_come_from_the_result_files(block: str, tmp_path: Path) -> None:
    text = readme.refreshed(BLOCK.format(block), tmp_path)
    assert text != readme.refreshed(BLOCK.format(block), RESULTS)
    assert "\nold\n" not in text


def test_every_shape_has_a_row_with_an_example_that_is_one() -> None:
    rows = readme.jobs().splitlines()[2:]
    assert len(rows) == len(SHAPES)
    for shape, row in zip(SHAPES.values(), rows, strict=True):
        example = json.loads(row.split("`")[1])
        assert example == shape.example
        request = job.parse(example, default_model="m")
        assert request.stream is False
        asks = job.parse(shape.streamed(), default_model="m")
        assert asks.stream is bool(shape.streams)
        assert len(row.split("|")) == 7, "a bar in a cell would make two of it"


def test_the_fields_named_in_the_table_are_those_there_are() -> None:
    told = {name for shape in ("chat", "prompt") for name in re.findall(r"`(\w+)`", SHAPES[shape].note)}
    shown = {name for shape in ("chat", "prompt") for name in SHAPES[shape].example}
    assert told | shown | {"model", "stream"} == set(FIELDS)
    assert set(re.findall(r"`(\w+)`", SHAPES["extended"].note)) == set(openai_extension.FIELDS)
