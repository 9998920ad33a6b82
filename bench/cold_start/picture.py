"""The result of `bench cold-start` for a person: a table for a terminal, a picture for a page."""

from __future__ import annotations

from typing import Any

from bench import bars

_TITLES = 24


def table(result: dict[str, Any]) -> str:
    """Return the result as lines of text: its clock, its circumstances, one line a rung."""
    head = f"{'':{_TITLES}}{'median':>9}{'min':>9}{'max':>9}{'stock ÷':>9}{'prefill/s':>11}{'decode/s':>10}"
    first = next((row["first_chunk"]["median_s"] for row in result["rungs"] if "first_chunk" in row), None)
    return "\n".join([f"{result['measured']}:", _circumstances(result), head, *_lines(result["rungs"], first)])


def picture(result: dict[str, Any]) -> str:
    """Return the result as an SVG document."""
    rows = [_bar(row) for row in result["rungs"]]
    notes = [
        f"Clock: {result['measured']}. Bars are medians of {result['runs']} runs, whiskers least and most.",
        f"{_circumstances(result)}. {result['command']}",
    ]
    return bars.draw("A cold start, step by step", notes, rows)


def _circumstances(result: dict[str, Any]) -> str:
    return (
        f"{result['server']}, {result['model']} ({result['model_bytes'] / 1e6:,.0f} MB) on {result['store']}, "
        f"page cache {result['page_cache']}, {result['runs']} runs, {result['machine']}"
    )


def _label(row: dict[str, Any]) -> str:
    return f"{row['number']} {row['title']}"


def _lines(rows: list[dict[str, Any]], first_s: float | None) -> list[str]:
    lines = []
    for row in rows:
        line = f"{_label(row):{_TITLES}}"
        if "not_run" in row:
            lines.append(f"{line}  not run: {row['not_run']}")
            continue
        figures = row["first_chunk"]
        line += "".join(f"{figures[f'{name}_s']:8.3f}s" for name in ("median", "min", "max"))
        line += f"{(first_s or 0) / figures['median_s']:8.2f}x"
        for name, cells in (("prefill", 11), ("decode", 10)):
            found = row.get(f"{name}_tokens_per_s")
            line += f"{found['median']:{cells}.1f}" if found else " " * (cells - 1) + "-"
        failed = row["failed"]
        lines.append(line + (f"  {len(failed)} failed: {failed[-1]:.100}" if failed else ""))
    return lines


def _bar(row: dict[str, Any]) -> bars.Bar:
    if "not_run" in row:
        return bars.Bar(_label(row), reason=f"not run: {row['not_run']}")
    figures = row["first_chunk"]
    return bars.Bar(_label(row), figures["median_s"], figures["min_s"], figures["max_s"])
