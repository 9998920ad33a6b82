"""README's tables of figures, from the results of the benches: each says where its clock starts and what repeats it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_IN_PLACE = "in place"
_TRANSFER_CLOCK = "from known address, size and digest to every byte written and its sha256 checked"
_LANDING_CLOCK = "from the known file to every byte of it mapped as llama.cpp maps it"


def boot(results: Path) -> str:
    """Return the table of `bench boot`, one row per server it was run with."""
    rows = [
        "| server | floor | this worker | ÷ floor | stock order | ÷ floor |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in _read(results, "boot-*/boot.json"):
        floor, worker, stock = (f"{result[name]['median_s']:.2f} s" for name in ("floor", "worker", "stock_order"))
        rows.append(
            f"| {result['server']} | {floor} | {worker} | {result['worker_to_floor']:.2f} "
            f"| {stock} | {result['stock_order_to_floor']:.2f} |"
        )
    return "\n".join(rows)


def cold_start(results: Path) -> str:
    """Return the table of `bench cold-start`: a column for each result, a row for each step that was measured in one.

    The others are named below it with their reasons.
    """
    found = list(_read(results, "cold-start-*/cold-start.json"))
    lines = [f"- `{result['command']}`: {_circumstances(result)}." for result in found]
    names = [f"{result['model']} on {result['store']}" for result in found]
    lines += ["", f"| step | {' | '.join(names)} |", f"| --- |{' --- |' * len(found)}"]
    every = [{row["number"]: row for row in result["rungs"]} for result in found]
    reasons: dict[str, list[str]] = {}
    for number in sorted({number for rows in every for number in rows}):
        rows = [rows.get(number, {}) for rows in every]
        title = f"{number} {next(row['title'] for row in rows if row)}"
        if any("first_chunk" in row for row in rows):
            cells = (_step(row, speeds=result["on_gpu"]) for row, result in zip(rows, found, strict=True))
            lines.append(f"| {title} | {' | '.join(cells)} |")
        else:
            reasons.setdefault(next(row["not_run"] for row in rows if row), []).append(title)
    told = "; ".join(f"{', '.join(titles)} ({reason})" for reason, titles in reasons.items())
    return "\n".join([*lines, *([f"\nNot measured there: {told}."] if told else [])])


def _circumstances(result: dict[str, Any]) -> str:
    return (
        f"{result['measured']}; median of {result['runs']} runs, least and most in brackets; {result['server']}, "
        f"{result['model']} ({result['model_bytes'] / 1e6:,.0f} MB) on {result['store']}, page cache "
        f"{result['page_cache']}, {result['machine']}"
    )


def _step(row: dict[str, Any], *, speeds: bool) -> str:
    """Return a cell; speeds of a processor that does other things too say nothing."""
    if "first_chunk" not in row:
        return f"not run: {row['not_run']}" if row else ""
    figures = row["first_chunk"]
    text = f"{figures['median_s']:.2f} s ({figures['min_s']:.2f} to {figures['max_s']:.2f})"
    found = [row.get(f"{name}_tokens_per_s") for name in ("prefill", "decode")]
    if speeds and all(found):
        prefill, decode = (f"{speed['median']:.0f}" for speed in found if speed)
        text += f", {prefill} and {decode} tokens/s"
    return text


def proxy(results: Path) -> str:
    """Return the table of `bench proxy`, one row for each way a stream can take."""
    lines = []
    for result in _read(results, "proxy/proxy.json"):
        rows = result["throughput"]
        counts = sorted({row["streams"] for row in rows})
        heads = [f"{count} {'stream' if count == 1 else 'streams'}" for count in counts]
        lines += [f"`python -m worker bench proxy --rounds {result['rounds']}`: {_proxied(result)}", ""]
        lines.append(f"| way | {' | '.join(heads)} | added before the first token | processor time a token |")
        lines.append(f"| --- |{' --- |' * (len(counts) + 2)}")
        for first in result["first_token"]:
            way = {row["streams"]: row for row in rows if row["way"] == first["way"]}
            ratios = " | ".join(f"{way[count]['ratio']:.3f}" for count in counts)
            used = f"{way[counts[-1]]['processor_us_per_token']:.1f} µs with {counts[-1]}"
            lines.append(f"| {first['way']} | {ratios} | {first['added_ms']:.1f} ms | {used} |")
    return "\n".join(lines)


def _proxied(result: dict[str, Any]) -> str:
    memory = result["memory"]
    return (
        "tokens a second from the first token to the last, through the worker ÷ asked of the server itself; it emits "
        f"{result['tokens_per_s_and_stream']} a second and stream; medians. One slot takes "
        f"{result['instant_jobs_per_s']['median']:.0f} instant jobs a second; memory grows by "
        f"{memory['growth_bytes_per_job']:.0f} bytes a job over {memory['jobs']:,} jobs."
    )


def landing(results: Path) -> str:
    """Return the table of `bench landing`, one row for each case that was landed; those left in place in a sentence."""
    found = sorted(
        (result for result in _read(results, "landing/*.json") if "ratio" in result),
        key=lambda row: -float(row["ratio"]),
    )
    lines = [_landed(found[0]), ""] if found else []
    lines += ["| where the model lies | llama.cpp alone | this worker | ratio | how |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for row in found:
        if row["method"] != _IN_PLACE:
            times = f"{row['llama_alone_s']:.2f} s | {row['worker_s']:.2f} s"
            lines.append(f"| {row['case']} | {times} | {row['ratio']:.2f} | {row['method']} |")
    left = "; ".join(f"{row['case']} {row['ratio']:.2f}" for row in found if row["method"] == _IN_PLACE)
    bound = "; ".join(f"{row['case']} {row['bound']:.2f}" for row in found if "bound" in row)
    sentences = [("Left in place, ratio", left), ("The same reads without writing a copy, ratio", bound)]
    return "\n".join([*lines, *(f"\n{what}: {values}." for what, values in sentences if values)])


def _landed(result: dict[str, Any]) -> str:
    return (
        f"`python -m worker bench landing`: {_LANDING_CLOCK}, {result['file_bytes'] / 1e9:.1f} GB, none of it in the "
        f"page cache unless said; medians of interleaved rounds; {result['machine']}. MooseFS is what Runpod's network "
        "volumes are."
    )


def transfer(results: Path) -> str:
    """Return the table of `bench transfer`, one row for each speed of a connection."""
    rows: list[dict[str, Any]] = next(_read(results, "transfer/transfer.json"), [])
    heads = ["a connection gives", "limit", "written", "verified", "one connection", "this worker"]
    heads += ["÷ limit", "÷ verified", "without its digest ÷ written"]
    lines = [*([_transferred(rows[0]), ""] if rows else []), f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for row in rows:
        speeds = (row[f"{way}_gb_per_s"] for way in ("limit", "written", "verified", "one", "worker"))
        ratios = (row[name] for name in ("worker_to_limit", "worker_to_verified", "fetched_to_written"))
        case = row["case"].removesuffix(" a connection")
        lines.append(f"| {case} | {' | '.join(f'{value:.2f}' for value in (*speeds, *ratios))} |")
    return "\n".join(lines)


def _transferred(result: dict[str, Any]) -> str:
    return (
        f"`{result['command']}`: {_TRANSFER_CLOCK}, {result['file_bytes'] / 1e9:.1f} GB over 16 connections of a "
        f"machine to itself; GB/s, medians of interleaved rounds; server and client share {result['machine']}. The "
        "limit throws the bytes away. Verified is written, while another process takes the digest of a file that is "
        "there already: what these cores can give."
    )


def _read(results: Path, pattern: str) -> Iterator[Any]:
    for path in sorted(results.glob(pattern)):
        yield json.loads(path.read_text(encoding="utf-8"))
