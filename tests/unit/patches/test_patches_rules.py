"""The project's queue keeps every static rule, and each rule notices when it is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.patches.queue import Problem, load_queue
from worker.patches.rules import CHANGED_LINES, check_static

WARMUP, POLL = "0001-skip-warmup.patch", "0005-load-poll.patch"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def faults(queue_dir: Path) -> list[Problem]:
    return check_static(load_queue(queue_dir))


def found(queue_dir: Path, rule: str, where: str, what: str) -> bool:
    return any(p.rule == rule and p.where == where and what in p.what for p in faults(queue_dir))


def test_the_projects_own_queue_has_no_problem(queue_dir: Path) -> None:
    assert faults(queue_dir) == []


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("OLLAMA_TAG=v", "OLLAMA_TAG=", "OLLAMA_TAG"),
        ("OLLAMA_COMMIT=", "OLLAMA_COMMIT=g", "OLLAMA_COMMIT"),
        ("https://", "git@", "OLLAMA_REPOSITORY"),
        ("OLLAMA_OLDEST=v", "OLLAMA_OLDEST= v", "OLLAMA_OLDEST"),
        ("OLLAMA_TAG=", "OLLAMA_VERSION=", "OLLAMA_TAG"),
    ],
)
def test_upstream_must_name_repository_tag_commit_and_oldest(queue_dir: Path, old: str, new: str, key: str) -> None:
    edit(queue_dir / "UPSTREAM", old, new)
    assert found(queue_dir, "upstream", "UPSTREAM", f"{key} is ")


def test_an_unknown_setting_of_upstream_is_named(queue_dir: Path) -> None:
    edit(queue_dir / "UPSTREAM", "OLLAMA_TAG=", "LLAMA_TAG=b1\nOLLAMA_TAG=")
    assert found(queue_dir, "upstream", "UPSTREAM", "'LLAMA_TAG' means nothing")


def test_a_listed_patch_must_exist(queue_dir: Path) -> None:
    (queue_dir / WARMUP).unlink()
    assert found(queue_dir, "series", "series", f"{WARMUP} is listed but does not exist")


def test_an_existing_patch_must_be_listed(queue_dir: Path) -> None:
    edit(queue_dir / "series", WARMUP + "\n", "")
    assert found(queue_dir, "series", WARMUP, "never applied")


def test_a_patch_is_listed_once(queue_dir: Path) -> None:
    edit(queue_dir / "series", WARMUP, f"{WARMUP}\n{WARMUP}")
    assert found(queue_dir, "series", "series", f"{WARMUP} is listed twice")


def test_names_carry_the_order(queue_dir: Path) -> None:
    names = (queue_dir / "series").read_text().split()
    (queue_dir / "series").write_text("\n".join(reversed(names)) + "\n")
    assert found(queue_dir, "series", "series", "order")


def test_a_name_has_a_number(queue_dir: Path) -> None:
    (queue_dir / WARMUP).rename(queue_dir / "warmup.patch")
    edit(queue_dir / "series", WARMUP, "warmup.patch")
    assert found(queue_dir, "series", "warmup.patch", "its name is not")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("Description: ", "Summary: ", "Description needs"),
        ("Forwarded: no", "Forwarded: later", "Forwarded has to be"),
        ("Reason: ", "Comment: ", "neither a figure"),
        ("Drop-When: ", "Until: ", "Drop-When does not say"),
    ],
)
def test_a_header_says_what_why_and_until_when(queue_dir: Path, old: str, new: str, what: str) -> None:
    edit(queue_dir / WARMUP, old, new)
    assert found(queue_dir, "header", WARMUP, what)


def test_a_description_of_one_line_gives_no_reason(queue_dir: Path) -> None:
    text = (queue_dir / WARMUP).read_text()
    lines = text.splitlines(keepends=True)
    overlay = next(n for n, line in enumerate(lines) if line.startswith("Overlay:"))
    (queue_dir / WARMUP).write_text("".join([lines[0], *lines[overlay:]]))
    assert found(queue_dir, "header", WARMUP, "Description needs")


@pytest.mark.parametrize("value", ["not-needed", "https://github.com/ollama/ollama/pull/1"])
def test_a_patch_may_have_been_forwarded(queue_dir: Path, value: str) -> None:
    edit(queue_dir / WARMUP, "Forwarded: no", f"Forwarded: {value}")
    assert faults(queue_dir) == []


def test_a_damaged_diff_is_reported_with_the_command_that_writes_it_anew(queue_dir: Path) -> None:
    edit(queue_dir / WARMUP, "@@ -422,3 +422,3 @@", "@@ -422,3 +422,4 @@")
    problems = [p for p in faults(queue_dir) if p.rule == "diff"]
    assert [p.where for p in problems] == [WARMUP]
    assert "refresh" in problems[0].fix


def test_code_in_a_patch_is_over_budget(queue_dir: Path) -> None:
    extra = "+\tcoldStartWarmup(nil)\n" * (CHANGED_LINES - 1)
    edit(queue_dir / WARMUP, "@@ -422,3 +422,3 @@", f"@@ -422,3 +422,{3 + CHANGED_LINES - 1} @@")
    edit(queue_dir / WARMUP, "+\tcmd = ", extra + "+\tcmd = ")
    assert found(queue_dir, "size", WARMUP, f"changes {CHANGED_LINES + 1} lines")


@pytest.mark.parametrize("side", ["before", "after", "none"])
def test_context_is_one_line_on_each_side(queue_dir: Path, side: str) -> None:
    if side == "none":
        edit(queue_dir / POLL, "@@ -1367,3 +1367,3 @@\n \t\t\t\tlastStatus = status\n", "@@ -1368,2 +1368,2 @@\n")
    elif side == "before":
        edit(queue_dir / POLL, "@@ -1367,3 +1367,3 @@\n", "@@ -1366,4 +1366,4 @@\n \t\t\tif x {\n")
    else:
        edit(queue_dir / POLL, "@@ -1367,3 +1367,3 @@", "@@ -1367,4 +1367,4 @@")
        edit(queue_dir / POLL, " \t\t\t\tcontinue\n", " \t\t\t\tcontinue\n \t\t\t}\n")
    counts = {"before": "2 and 1", "after": "1 and 2", "none": "0 and 1"}[side]
    assert found(queue_dir, "size", POLL, f"hunk 1 has {counts} lines of context")
