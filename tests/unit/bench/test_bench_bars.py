"""The picture of a cold start: true to its figures, whole, and readable on light and on dark pages."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.bars import Bar, draw
from bench.cold_start.picture import picture, table

SVG = "{http://www.w3.org/2000/svg}"
BARS = [Bar("1 stock", 8.0, 7.5, 10.0), Bar("2 ours", 2.0, 1.9, 2.5), Bar("3 landing", reason="not run: local")]


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, "rung": f"r{number}", "title": f"step {number}", "settings": {}, "withheld": [], **more}


def measured(median_s: float, **more: Any) -> dict[str, Any]:
    spread = {"median_s": median_s, "min_s": median_s - 0.1, "max_s": median_s + 0.2}
    return {"first_chunk": spread, "runs_s": [median_s], "failed": [], **more}


RESULT = {
    "measured": "start to first chunk",
    "command": "python -m worker bench cold-start --runs 3",
    "machine": "2 cores",
    "server": "ollama 0.32.15",
    "model": "m:1b",
    "model_bytes": 98_000_000,
    "store": "ext4",
    "page_cache": "warm",
    "runs": 3,
    "rungs": [
        row(1, **measured(3.0, prefill_tokens_per_s={"median": 310.5}, decode_tokens_per_s={"median": 80.25})),
        row(2, not_run="no NVIDIA device is visible"),
        row(3, **measured(0.6, failed=["no chunk within 5 s"])),
    ],
}


def rectangles(svg: str) -> list[ET.Element]:
    return ET.fromstring(svg).findall(f"{SVG}rect")  # noqa: S314 - what the test has just drawn


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - same


def test_bars_are_as_long_as_their_medians() -> None:
    first, second = rectangles(draw("title", [], BARS))
    assert float(first.get("width", 0)) == pytest.approx(4 * float(second.get("width", 0)), rel=0.01)
    assert (first.get("class"), second.get("class")) == ("first", "bar")


def test_nothing_leaves_the_picture() -> None:
    svg = draw("title", ["a note " * 60], BARS)
    root = ET.fromstring(svg)  # noqa: S314 - same
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for element in root.iter():
        x, y = float(element.get("x", 0)), float(element.get("y", 0))
        assert 0 <= x + float(element.get("width", 0) if element is not root else 0) <= width
        assert 0 <= y <= height
    most = max(
        float(part.split("V")[0].split()[0])
        for path in root.iter(f"{SVG}path")
        for part in path.get("d", "").split("M")[2:]
    )
    assert most <= width


def test_a_bar_says_its_figures_and_a_rung_that_was_not_run_its_reason() -> None:
    shown = texts(draw("title", [], BARS))
    assert {"8.00 s", "7.50 to 10.00", "2.00 s", "not run: local"} <= set(shown)
    assert len(rectangles(draw("title", [], BARS))) == 2


@pytest.mark.parametrize("highest", [0.004, 0.7, 1.0, 9.99, 50.5, 3000.0])
def test_the_axis_has_a_handful_of_round_numbers(highest: float) -> None:
    ticks = [text for text in texts(draw("t", [], [Bar("a", highest, highest, highest)])) if text.endswith(" s")][:-1]
    assert 3 <= len(ticks) <= 8
    assert ticks[0] == "0 s"
    assert all(len(tick) <= 8 for tick in ticks)
    assert float(ticks[-1][:-2]) <= highest


def test_a_picture_without_a_single_figure_is_one_all_the_same() -> None:
    assert "not run: b" in texts(draw("title", [], [Bar("a", reason="not run: b")]))


def test_it_has_colours_for_dark_pages_and_no_background() -> None:
    svg = draw("title", [], BARS)
    light, dark = svg.split("prefers-color-scheme: dark")
    assert "fill: #1f2328" in light
    assert "fill: #f0f6fc" in dark


def test_what_looks_like_markup_is_text() -> None:
    assert 'a <b> & "c"' in texts(draw("<title>", [], [Bar('a <b> & "c"', 1, 1, 1)]))


def test_the_picture_states_its_clock_and_its_command() -> None:
    told = " ".join(texts(picture(RESULT)))
    assert "Clock: start to first chunk." in told
    assert "python -m worker bench cold-start --runs 3" in told
    assert "1 step 1" in texts(picture(RESULT))


def test_the_table_has_a_line_a_rung_with_its_figures_or_its_reason() -> None:
    clock, circumstances, head, *lines = table(RESULT).splitlines()
    assert clock == "start to first chunk:"
    assert "m:1b (98 MB) on ext4, page cache warm, 3 runs, 2 cores" in circumstances
    assert head.split() == ["median", "min", "max", "stock", "÷", "prefill/s", "decode/s"]
    assert lines[0].split() == ["1", "step", "1", "3.000s", "2.900s", "3.200s", "1.00x", "310.5", "80.2"]
    assert lines[1].split(maxsplit=3) == ["2", "step", "2", "not run: no NVIDIA device is visible"]
    assert lines[2].split()[3:9] == ["0.600s", "0.500s", "0.800s", "5.00x", "-", "-"]
    assert lines[2].endswith("1 failed: no chunk within 5 s")
