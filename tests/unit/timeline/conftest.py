"""Logs to read: the worker's own, written by its real writer, and those of other images."""

import io
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from worker import events
from worker.events import Event, EventWriter

T0_NS = 1_796_008_931_000_000_000
"""2026-11-30T03:22:11Z."""

LOGS = Path(__file__).parent / "logs"

Told = tuple[float, Event]


def write(told: Iterable[Told], start_ns: int = T0_NS) -> str:
    """Return the stdout of a worker that reported each event so many milliseconds after `start_ns`."""
    stream = io.StringIO(newline="")
    writer = EventWriter(stream)
    for at_ms, event in told:
        writer.write(event, at_ns=start_ns + round(at_ms * 1e6))
    return stream.getvalue()


def logged(at_ms: float, line: str) -> Told:
    return at_ms, events.ServerLogged(line)


def boot_events() -> list[Told]:
    """Everything up to the SDK's loop: weights are the long branch of the fork."""
    return [
        (0, events.ContainerStarted()),
        (80, events.WorkerStarted(pid=7, version="0.1.0")),
        (120, events.ServerSpawned(pid=9, argv=["ollama", "serve"])),
        (200, events.ConfigLoaded(model="m", concurrency=1)),
        (202, events.WeightsRequested(model="m")),
        (203, events.SdkImportStarted()),
        logged(260, 'time=2026-11-30T03:22:11.260Z level=INFO source=routes.go:1951 msg="server config" env="map[]"'),
        logged(300, 'time=2026-11-30T03:22:11.300Z level=INFO msg="Listening on 127.0.0.1:11434 (version 0.32.15)"'),
        logged(900, 'time=2026-11-30T03:22:11.900Z level=INFO msg="inference compute" library=CUDA libdirs=cuda_v12'),
        (950, events.ServerAnswered(version="0.32.15")),
        (1003, events.SdkImportFinished(version="1.12.0")),
        (1500, events.SourcePassedOver(source="local", reason="not here")),
        (2600, events.WeightsPlaced(model="m", source="volume", store="s")),
        (2610, events.LoadStarted(model="m")),
    ]


def load_events() -> list[Told]:
    return [
        logged(2700, 'time=2026-11-30T03:22:13.700Z level=INFO msg="starting llama-server" cmd="llama-server"'),
        logged(3000, "load_backend: loaded CUDA backend from /usr/lib/ollama/cuda_v12/libggml-cuda.so"),
        logged(3100, "srv    load_model: loading model '/m'"),
        logged(3150, "llama_model_loader: loaded meta data with 35 key-value pairs"),
        logged(3300, "load_tensors: loading model tensors, this can take a while... (load_mode = none)"),
        logged(3350, "load_tensors: offloading output layer to GPU"),
        logged(4350, "llama_context: constructing llama_context"),
        logged(4600, "sched_reserve: reserve took 12.00 ms"),
        logged(4700, "srv    load_model: initializing, n_slots = 1, n_ctx_slot = 8192"),
        logged(4720, "srv  llama_server: model loaded"),
        logged(4740, 'time=2026-11-30T03:22:15.740Z level=INFO msg="llama-server started in 2.04 seconds"'),
        (4750, events.LoadFinished(model="m", size_bytes=10, size_vram_bytes=10, context_length=8192)),
        (4760, events.BootReady(model="m")),
        (4800, events.LoopStarted(concurrency=1)),
    ]


def job_events(job_id: str = "job-1", start_ms: float = 5300) -> list[Told]:
    return [
        (start_ms, events.JobAccepted(job_id)),
        (start_ms + 5, events.JobOpened(job_id, route="/api/chat", model="m")),
        (start_ms + 105, events.JobTokenReceived(job_id)),
        (start_ms + 125, events.JobChunkPosted(job_id)),
        (
            start_ms + 1105,
            events.JobFinished(
                job_id,
                chunks=9,
                body_bytes=900,
                prompt_tokens=40,
                output_tokens=101,
                prefill_ms=80.0,
                decode_ms=990.0,
            ),
        ),
    ]


@pytest.fixture
def own_log() -> str:
    """One boot and one job of this worker, with the SDK's own lines between."""
    sdk_line = '{"requestId": "job-1", "message": "Started.", "level": "INFO"}\n'
    return write([*boot_events(), *load_events()]) + sdk_line + write(job_events())


@pytest.fixture
def log() -> Callable[[str], str]:
    """Return the text of a stored log by its name."""
    return lambda name: (LOGS / name).read_text(encoding="utf-8")
