import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker.events import VOCABULARY
from worker.timeline import findings, model, parse
from worker.timeline.advice import ADVICE
from worker.timeline.findings import Finding
from worker.timeline.parse import Entry

S = 1_000_000_000


def entry(name: str, at_s: float, **fields: Any) -> Entry:
    return Entry(round(at_s * S), 0, name, fields, own=name in VOCABULARY)


def found(*entries: Entry, answered_s: float = 9) -> dict[str, Finding]:
    """The findings of a start in which nothing is remarkable but `entries`; its gaps are not looked at."""
    base = [
        entry("container.started", 0),
        entry("worker.started", 0.1),
        entry("server.spawned", 0.2),
        entry("config.loaded", 0.2),
        entry("server.answered", answered_s),
        entry("boot.ready", 60),
        entry("loop.started", 60),
    ]
    (timeline,) = model.timelines(sorted((*base, *entries), key=lambda given: given.at_ns))
    named = {finding.code: finding for finding in findings.findings(timeline)}
    named.pop("unexplained_gap", None)
    return named


def load(*inside: Entry, spawned_s: float = 10) -> list[Entry]:
    return [entry("load.started", 10), entry("runner.spawned", spawned_s), *inside, entry("load.finished", 50)]


V13 = entry("backend.loaded", 11, path="/usr/lib/ollama/cuda_v13/libggml-cuda.so")
V12 = entry("backend.loaded", 11, path="/usr/lib/ollama/cuda_v12/libggml-cuda.so")


def test_a_quick_start_has_nothing_to_mend(own_log: str) -> None:
    (timeline,) = model.timelines(parse.read(own_log))
    assert findings.findings(timeline) == ()


def test_a_stock_images_log_gets_its_list_dearest_first(log: Callable[[str], str]) -> None:
    (timeline,) = model.timelines(parse.read(log("stock_docker.log")))
    told = findings.findings(timeline)
    assert [finding.code for finding in told] == [
        "slow_read",
        "jit_suspected",
        "slow_discovery",
        "fit",
        "store_walk",
        "large_context",
    ]
    evidence = {finding.code: finding.evidence for finding in told}
    assert evidence["slow_read"] == "18.4 GiB in 22.00 s: 898 MB/s"
    assert evidence["jit_suspected"] == "cuda_v13, warm-up took 11.00 s, prefill took 5.24 s"
    assert evidence["slow_discovery"] == "GPU discovery took 5.76 s, OLLAMA_LLM_LIBRARY=(unset)"


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([entry("gpu.discovered", 0.9, library="cpu")], "cpu_only"),
        (load(entry("layers.offloaded", 20, on_gpu=30, layers=49)), "partly_on_cpu"),
        ([entry("load.started", 1), entry("load.finished", 2, size_bytes=10, size_vram_bytes=7)], "partly_on_cpu"),
        ([entry("mmap.disabled", 12)], "mmap_disabled"),
        ([entry("context.defaulted", 5, default_num_ctx=262_144)], "large_context"),
        ([entry("context.sized", 5, n_ctx=131_072)], "large_context"),
        ([V13], "ptx_only_backend"),
        ([entry("gpu.discovered", 0.9, library="CUDA", libdirs="ollama,cuda_v13")], "ptx_only_backend"),
        (
            [entry("server.configured", 1.5), entry("server.listened", 1.6), entry("gpu.discovered", 2)],
            "slow_process_start",
        ),
        ([entry("server.configured", 0.3), entry("server.listened", 1), entry("gpu.discovered", 1.1)], "store_walk"),
        (load(spawned_s=11), "slow_schedule"),
        (load(entry("fit.started", 12), entry("fit.finished", 13)), "fit"),
        (load(V12, entry("warmup.started", 12), entry("slots.started", 13)), "warmup"),
        (load(entry("projector.started", 12), entry("projector.loaded", 13)), "projector"),
        ([*load(), entry("runner.started", 49), entry("runner.spawned", 55)], "loaded_again"),
    ],
)
def test_a_rule_finds_its_case_and_only_that(entries: list[Entry], code: str) -> None:
    assert list(found(*entries)) == [code]


@pytest.mark.parametrize(
    "entries",
    [
        [entry("gpu.discovered", 0.9, library="CUDA", libdirs="ollama,cuda_v12")],
        load(entry("layers.offloaded", 20, on_gpu=49, layers=49)),
        [entry("load.started", 1), entry("load.finished", 2, size_bytes=10, size_vram_bytes=10)],
        [entry("context.defaulted", 5, default_num_ctx=262_144), entry("context.sized", 6, n_ctx=8192)],
        [entry("server.configured", 0.3), entry("server.listened", 0.4), entry("gpu.discovered", 1.3)],
        load(spawned_s=10.2),
        load(entry("fit.started", 12), entry("fit.finished", 12.1)),
        [*load(), entry("runner.started", 49), entry("runner.started", 49.1)],
    ],
)
def test_what_is_in_order_is_not_mentioned(entries: list[Entry]) -> None:
    assert found(*entries) == {}


def prefill(took_s: float, prompt_tokens: int = 20) -> list[Entry]:
    return [
        entry("job.accepted", 60.5, job_id="j"),
        entry("job.opened", 61, job_id="j"),
        entry("job.token_received", 61 + took_s, job_id="j"),
        entry("job.chunk_posted", 61 + took_s, job_id="j"),
        entry("job.finished", 90, job_id="j", prompt_tokens=prompt_tokens),
    ]


def test_a_slow_first_token_on_ptx_is_compilation() -> None:
    finding = found(V13, *prefill(8))["jit_suspected"]
    assert (finding.cost_ns, finding.evidence) == (8 * S, "cuda_v13, prefill took 8.00 s")


def test_a_slow_test_decode_on_ptx_is_compilation_and_warm_up_is_not_blamed() -> None:
    slow_load = load(V13, entry("warmup.started", 12), entry("slots.started", 40))
    told = found(*slow_load)
    assert list(told) == ["jit_suspected"]
    assert told["jit_suspected"].cost_ns == 28 * S


def test_a_slow_first_token_elsewhere_is_loading() -> None:
    assert list(found(V12, *prefill(8))) == ["first_prefill_slow"]


def test_a_long_prompt_explains_a_slow_first_token() -> None:
    assert found(V12, *prefill(8, prompt_tokens=50_000)) == {}


def test_a_cpu_is_slow_for_its_own_reasons() -> None:
    assert list(found(entry("gpu.discovered", 0.9, library="cpu"), *prefill(8))) == ["cpu_only"]


def discovery(took_s: float) -> list[Entry]:
    return [
        entry("server.configured", 0.3, env="map[OLLAMA_VULKAN:0 OLLAMA_LLM_LIBRARY:cuda_v12]"),
        entry("server.listened", 0.4),
        entry("library.tried", 2, OLLAMA_LIBRARY_PATH="[/l /l/cuda_v12]"),
        entry("library.tried", 3, OLLAMA_LIBRARY_PATH="[/l /l/vulkan]"),
        entry("library.tried", 4, OLLAMA_LIBRARY_PATH="[/l /l/vulkan]"),
        entry("gpu.discovered", 0.4 + took_s, library="CUDA"),
    ]


def test_slow_discovery_tells_how_many_libraries_were_tried() -> None:
    finding = found(*discovery(5))["slow_discovery"]
    assert finding.evidence == "GPU discovery took 5.00 s, 2 library directories tried, OLLAMA_LLM_LIBRARY=cuda_v12"
    assert "slow_discovery" not in found(*discovery(0.9))


@pytest.mark.parametrize(
    ("source", "codes"), [("pull", ["downloaded_at_boot"]), ("hub", ["downloaded_at_boot"]), ("volume", [])]
)
def test_only_weights_from_afar_are_a_download(source: str, codes: list[str]) -> None:
    assert list(found(entry("weights.requested", 1), entry("weights.placed", 9, source=source))) == codes


@pytest.mark.parametrize(
    ("mode", "read_s", "upload_s", "evidence"),
    [
        ("mmap", 10, 2, "4 GB in 10.00 s: 400 MB/s"),
        ("none", 0.1, 20, "4 GB in 20.00 s: 200 MB/s"),
        ("dio", 0.1, 20, "4 GB in 20.00 s: 200 MB/s"),
        ("mmap", 1.5, 20, None),
        ("mmap", 0.5, 20, None),
        ("none", 10, 0.5, None),
    ],
)
def test_a_slow_read_is_measured_where_the_load_mode_reads(
    mode: str, read_s: float, upload_s: float, evidence: str | None
) -> None:
    told = found(
        *load(
            entry("file.sized", 11, size=4, unit="GB"),
            entry("tensors.started", 12, mode=mode),
            entry("tensors.mapped", 12 + read_s),
            entry("context.started", 12 + read_s + upload_s),
        )
    )
    assert (told["slow_read"].evidence if told else None) == evidence


def test_time_nothing_explains_is_told_when_it_matters() -> None:
    (timeline,) = model.timelines([entry("load.started", 0), entry("load.finished", 1), entry("boot.ready", 5)])
    (finding,) = findings.findings(timeline)
    assert (finding.code, finding.cost_ns, finding.evidence) == ("unexplained_gap", 4 * S, "load → the end: 4.00 s")
    (short,) = model.timelines([entry("load.started", 0), entry("load.finished", 9), entry("boot.ready", 9.8)])
    assert findings.findings(short) == ()


def test_every_finding_has_advice_and_every_advice_a_rule() -> None:
    source = Path(findings.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r'Finding\(\s*"(\w+)"', source)) | {code for code, _ in findings._PHASES.values()}
    # This one is chosen between two names in one call.
    assert named | {"jit_suspected", "ptx_only_backend"} == set(ADVICE)
    assert Finding("fit", "seen").sentence == ADVICE["fit"]
