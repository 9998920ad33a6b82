"""The report a person reads and the one a program reads."""

from __future__ import annotations

import json

from tests.fakes.cuda_library import library, ptx, sass
from worker.backend import Backend
from worker.device import Device, Driver, Found
from worker.fatbin import parse
from worker.gpu_report import make_report, render_table

BACKENDS = [
    Backend("cuda_v12", parse(library([sass("80"), sass("90a"), ptx("90")]), "v12"), (12, 8)),
    Backend(
        "cuda_v13",
        parse(library([ptx("75", size=2_000_000), ptx("90", version=(9, 0), size=2_000_000)]), "v13"),
        (13, 0),
    ),
]
DEVICE = Device(0, "NVIDIA H100 80GB HBM3", "GPU-1", (9, 0), 85520809984)
BECAUSE = "native code for every device; Ollama by itself would take cuda_v13, which compiles up to 2 MB of PTX first"
FOUND = Found((DEVICE,), Driver("580.95.05", (13, 0)), "NVML", ("one thing to know",))


def test_the_table_says_what_runs_what_ollama_would_do_and_what_is_set() -> None:
    assert render_table(make_report(BACKENDS, FOUND)).splitlines() == [
        "driver   580.95.05 (CUDA 13.0)   (asked: NVML)",
        "GPU 0    NVIDIA H100 80GB HBM3 (9.0)   79.6 GiB",
        "note     one thing to know",
        "",
        "BACKEND   RUNTIME  DRIVER  SASS    PTX",
        "cuda_v12  12.8     >= 550  80 90a  90",
        "cuda_v13  13.0     >= 580  -       75 90",
        "",
        "BACKEND   DEVICE  VERDICT       WHY",
        "cuda_v12  GPU 0   native        SASS in 1 of 1 modules",
        "cuda_v13  GPU 0   JIT from PTX  PTX only (compute_90) in 1 of 1 modules",
        "",
        "Ollama by itself   cuda_v13",
        "we set             OLLAMA_LLM_LIBRARY=cuda_v12",
        "because            " + BECAUSE,
    ]


def test_the_table_says_what_to_do_when_nothing_runs() -> None:
    lines = render_table(make_report(BACKENDS, Found((), None, "nothing answered", ("no NVML",)))).splitlines()
    assert lines[0] == "driver   unknown   (asked: nothing answered)"
    assert "Ollama by itself   the CPU" in lines
    assert "we set             nothing" in lines
    assert lines[-1].startswith("to do              Start the container with a GPU")
    assert not any("VERDICT" in line for line in lines)


def test_a_mig_instance_and_unknown_memory_show() -> None:
    found = Found((Device(0, "NVIDIA H100", "MIG-1", (9, 0), mig=True),), None, "NVML")
    assert "GPU 0    NVIDIA H100 (9.0)   memory unknown   MIG" in render_table(make_report(BACKENDS, found))


def test_a_backend_that_cannot_be_read_has_its_row() -> None:
    broken = Backend("cuda_v12", problem="cannot be read: x.so: empty file at offset 0x0")
    text = render_table(make_report([broken], FOUND))
    assert "cuda_v12  -        -       -     -" in text
    assert "cuda_v12  GPU 0   unusable  cannot be read: x.so: empty file at offset 0x0" in text


def test_json_says_the_same_and_more() -> None:
    report = json.loads(json.dumps(make_report(BACKENDS, FOUND).to_dict(), allow_nan=False))
    assert report["driver"] == {"version": "580.95.05", "cuda": "13.0"}
    assert report["found_by"] == "NVML"
    assert report["notes"] == ["one thing to know"]
    assert report["devices"] == [
        {
            "index": 0,
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "GPU-1",
            "capability": "9.0",
            "memory_bytes": 85520809984,
            "mig": False,
        }
    ]
    v12, v13 = report["backends"]
    assert (v12["name"], v12["runtime"], v12["driver_floor"], v12["modules"]) == ("cuda_v12", "12.8", 550, 1)
    assert (v12["sass"], v12["ptx"], v13["sass"], v13["ptx"]) == (["80", "90a"], ["90"], [], ["75", "90"])
    assert [verdict["outcome"] for verdict in v12["verdicts"] + v13["verdicts"]] == ["native", "jit"]
    assert (v13["verdicts"][0]["jit_bytes"], v13["verdicts"][0]["jit_seconds"]) == (2_000_000, 3)
    assert report["choice"]["backend"] == "cuda_v12"
    assert report["choice"]["upstream"] == "cuda_v13"
    assert report["choice"]["hint"] == ""


def test_json_has_null_for_what_is_unknown() -> None:
    found = Found((Device(0, "NVIDIA L4"),), None, "proc")
    report = make_report([Backend("mine", problem="cannot be read")], found).to_dict()
    assert report["driver"] is None
    assert report["devices"][0]["capability"] is None
    assert (report["backends"][0]["runtime"], report["backends"][0]["driver_floor"]) == (None, None)
    assert (report["choice"]["backend"], report["choice"]["upstream"]) == (None, None)


def test_the_users_own_setting_is_part_of_the_report() -> None:
    assert "OLLAMA_LLM_LIBRARY=cuda_v13" in render_table(make_report(BACKENDS, FOUND, "cuda_v13"))
