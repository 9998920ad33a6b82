"""README's figures are those of the result files, each with its clock and the command that repeats it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker import figures
from worker.local.process import ROOT

RESULTS = ROOT / "bench" / "results"


def put(path: Path, result: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result), encoding="utf-8")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def spread(median_s: float) -> dict[str, float]:
    return {"median_s": median_s, "min_s": median_s - 0.1, "max_s": median_s + 0.2}


def test_a_boot_has_a_row_a_server(tmp_path: Path) -> None:
    result = {
        "server": "a server",
        "floor": spread(1.234),
        "worker": spread(1.5),
        "stock_order": spread(3.7),
        "worker_to_floor": 1.216,
        "stock_order_to_floor": 2.998,
    }
    put(tmp_path / "boot-somewhere" / "boot.json", result)
    assert figures.boot(tmp_path).splitlines()[-1] == "| a server | 1.23 s | 1.50 s | 1.22 | 3.70 s | 3.00 |"


def rung(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, "rung": f"r{number}", "title": f"+ step {number}", **more}


def cold_start(store: str, *rungs: dict[str, Any], on_gpu: bool = True) -> dict[str, Any]:
    return {
        "on_gpu": on_gpu,
        "measured": "start to first chunk",
        "command": f"python -m worker bench cold-start --on {store}",
        "machine": "2 cores",
        "server": "ollama 0.32.15",
        "model": "m:1b",
        "model_bytes": 98_000_000,
        "store": store,
        "page_cache": "warm",
        "runs": 5,
        "rungs": list(rungs),
    }


def test_a_cold_start_has_a_column_a_result_and_a_row_a_step(tmp_path: Path) -> None:
    speeds = {"prefill_tokens_per_s": {"median": 310.4}, "decode_tokens_per_s": {"median": 80.6}}
    first = cold_start("ext4", rung(1, first_chunk=spread(2.5), **speeds), rung(2, not_run="no folder"))
    second = cold_start(
        "FUSE", rung(1, first_chunk=spread(5.0), **speeds), rung(2, first_chunk=spread(1.0)), on_gpu=False
    )
    put(tmp_path / "cold-start-a" / "cold-start.json", first)
    put(tmp_path / "cold-start-b" / "cold-start.json", second)
    clock, other, _, head, _, *rows = figures.cold_start(tmp_path).splitlines()
    assert clock.startswith("- `python -m worker bench cold-start --on ext4`: start to first chunk; median of 5 runs")
    assert "--on FUSE" in other
    assert "m:1b (98 MB) on ext4, page cache warm, 2 cores." in clock
    assert cells(head) == ["step", "m:1b on ext4", "m:1b on FUSE"]
    assert [cells(row) for row in rows] == [
        ["1 + step 1", "2.50 s (2.40 to 2.70), 310 and 81 tokens/s", "5.00 s (4.90 to 5.20)"],
        ["2 + step 2", "not run: no folder", "1.00 s (0.90 to 1.20)"],
    ]


def test_steps_nobody_could_measure_are_named_with_their_reasons(tmp_path: Path) -> None:
    rungs = [rung(1, first_chunk=spread(2.5)), *(rung(number, not_run="no GPU") for number in (6, 9, 10))]
    put(tmp_path / "cold-start-a" / "cold-start.json", cold_start("ext4", *rungs, rung(7, not_run="nothing to land")))
    put(tmp_path / "cold-start-b" / "cold-start.json", cold_start("FUSE", rung(1, first_chunk=spread(2.5))))
    *_, row, _, told = figures.cold_start(tmp_path).splitlines()
    assert cells(row)[0] == "1 + step 1"
    assert told == "Not measured there: 6 + step 6, 9 + step 9, 10 + step 10 (no GPU); 7 + step 7 (nothing to land)."


def test_a_way_through_the_worker_has_a_row_and_a_number_of_streams_a_column(tmp_path: Path) -> None:
    def throughput(way: str, streams: int, ratio: float) -> dict[str, Any]:
        return {"way": way, "streams": streams, "ratio": ratio, "processor_us_per_token": 100 / streams}

    result = {
        "rounds": 7,
        "tokens_per_s_and_stream": 2000,
        "throughput": [
            throughput("queue", 1, 0.9999),
            throughput("gateway", 1, 1.0),
            throughput("queue", 8, 0.98765),
            throughput("gateway", 8, 0.5),
        ],
        "first_token": [{"way": "queue", "added_ms": 2.94}, {"way": "gateway", "added_ms": 0.59}],
        "instant_jobs_per_s": {"median": 331.3, "min": 221.0},
        "memory": {"jobs": 10000, "growth_bytes_per_job": 27.3},
    }
    put(tmp_path / "proxy" / "proxy.json", result)
    clock, _, head, rule, *rows = figures.proxy(tmp_path).splitlines()
    assert clock.startswith("`python -m worker bench proxy --rounds 7`: ")
    assert "331 instant jobs a second; memory grows by 27 bytes a job over 10,000 jobs" in clock
    assert cells(head)[1:3] == ["1 stream", "8 streams"]
    assert len(cells(rule)) == len(cells(head))
    assert [cells(row) for row in rows] == [
        ["queue", "1.000", "0.988", "2.9 ms", "12.5 µs with 8"],
        ["gateway", "1.000", "0.500", "0.6 ms", "12.5 µs with 8"],
    ]


def test_landing_has_a_row_a_case_the_best_first_and_a_sentence_for_what_stayed(tmp_path: Path) -> None:
    def case(name: str, alone_s: float, worker_s: float, method: str = "O_DIRECT, 6 readers", **more: float) -> None:
        figures_of = {"llama_alone_s": alone_s, "worker_s": worker_s, "ratio": alone_s / worker_s, "method": method}
        figures_of.update(more)
        result = {"case": name, "file_bytes": 2.1e9, "machine": "2 cores", **figures_of}
        put(tmp_path / "landing" / f"{name}.json", result)

    case("slow", 1.0, 1.25)
    case("fuse", 10.0, 2.0, bound=6.5)
    case("disk", 1.0, 1.0, "in place")
    put(tmp_path / "landing" / "leases.json", {"case": "leases"})
    put(tmp_path / "landing" / "absent.json", {"case": "absent", "not_run": "no FUSE here"})
    clock, _, _, _, *rows, _, left, _, bound = figures.landing(tmp_path).splitlines()
    assert clock.startswith("`python -m worker bench landing`: from the known file to every byte of it mapped")
    assert "2.1 GB" in clock
    assert [cells(row) for row in rows] == [
        ["fuse", "10.00 s", "2.00 s", "5.00", "O_DIRECT, 6 readers"],
        ["slow", "1.00 s", "1.25 s", "0.80", "O_DIRECT, 6 readers"],
    ]
    assert left == "Left in place, ratio: disk 1.00."
    assert bound == "The same reads without writing a copy, ratio: fuse 6.50."


def test_transfer_has_a_row_a_case(tmp_path: Path) -> None:
    ways = ("limit", "written", "verified", "one", "fetched", "worker")
    row = {
        "case": "50 MB/s a connection",
        "command": "python -m worker bench transfer --rounds 7",
        "machine": "2 cores",
        "file_bytes": 1.1e9,
        **{f"{way}_gb_per_s": number / 8 for number, way in enumerate(ways, 1)},
        "worker_to_limit": 0.875,
        "worker_to_verified": 0.755,
        "fetched_to_written": 0.625,
    }
    put(tmp_path / "transfer" / "transfer.json", [row, {**row, "case": "no cap"}])
    clock, _, head, rule, *rows = figures.transfer(tmp_path).splitlines()
    assert clock.startswith("`python -m worker bench transfer --rounds 7`: from known address, size and digest to ")
    assert len(cells(rule)) == len(cells(head))
    shown = ["0.12", "0.25", "0.38", "0.50", "0.75", "0.88", "0.76", "0.62"]
    assert [cells(line) for line in rows] == [["50 MB/s", *shown], ["no cap", *shown]]


@pytest.mark.parametrize("maker", [figures.boot, figures.cold_start, figures.proxy, figures.landing, figures.transfer])
def test_the_kept_results_can_be_shown_and_none_at_all_too(maker: Any, tmp_path: Path) -> None:
    shown = maker(RESULTS)
    assert "bench" in shown or maker is figures.boot
    tables = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(tables) > 2
    assert len({len(cells(line)) for line in tables}) == 1
    assert len(maker(tmp_path)) < len(shown)
