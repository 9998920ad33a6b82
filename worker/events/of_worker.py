"""The facts of a worker's life, from its container's start to its own last line."""

from __future__ import annotations

from dataclasses import dataclass

from worker.events.event import Event


@dataclass(frozen=True)
class ContainerStarted(Event, name="container.started"):
    """start.sh ran its first line; stamped with the time taken there."""


@dataclass(frozen=True)
class WorkerStarted(Event, name="worker.started"):
    """Python reached the first line of handler.py."""

    pid: int
    version: str


@dataclass(frozen=True)
class ConfigLoaded(Event, name="config.loaded"):
    """The environment was read and is consistent."""

    model: str
    concurrency: int


@dataclass(frozen=True)
class ServerSpawned(Event, name="server.spawned"):
    """The server process exists."""

    pid: int
    argv: list[str]


@dataclass(frozen=True)
class ServerLogged(Event, name="server.logged"):
    """One line of the server or its runner, stamped when it arrived."""

    line: str


@dataclass(frozen=True)
class ServerAnswered(Event, name="server.answered"):
    """The server answered HTTP 200 (its own "Listening" line comes earlier and means less)."""

    version: str


@dataclass(frozen=True)
class ServerExited(Event, name="server.exited"):
    """The server ended without having been asked to."""

    return_code: int


@dataclass(frozen=True)
class ServerStopped(Event, name="server.stopped"):
    """The server and everything it started are gone because we asked."""

    return_code: int


@dataclass(frozen=True)
class GpuJudged(Event, name="gpu.judged"):
    """Whether the chosen CUDA backend has code for the devices here: native, jit, unusable or unknown.

    `upstream` is what Ollama would have taken by itself, empty for the CPU.
    """

    backend: str
    outcome: str
    reason: str
    upstream: str


@dataclass(frozen=True)
class SdkImportStarted(Event, name="sdk_import.started"):
    """`import runpod` began."""


@dataclass(frozen=True)
class SdkImportFinished(Event, name="sdk_import.finished"):
    """`import runpod` is done and its quirks are corrected."""

    version: str


@dataclass(frozen=True)
class LoadStarted(Event, name="load.started"):
    """The server was asked to make the model resident."""

    model: str


@dataclass(frozen=True)
class LoadFinished(Event, name="load.finished"):
    """The model is resident."""

    model: str
    size_bytes: int
    size_vram_bytes: int
    context_length: int


@dataclass(frozen=True)
class PrimeStarted(Event, name="prime.started"):
    """One tiny prompt is run so that the first job need not wait for its kernels."""


@dataclass(frozen=True)
class PrimeFinished(Event, name="prime.finished"):
    """That prompt was answered."""


@dataclass(frozen=True)
class BootReady(Event, name="boot.ready"):
    """Nothing is left to do before the first job."""

    model: str


@dataclass(frozen=True)
class BootFailed(Event, name="boot.failed"):
    """The worker cannot serve."""

    code: str
    message: str
    exit_code: int


@dataclass(frozen=True)
class LoopStarted(Event, name="loop.started"):
    """The SDK's loop asks for jobs."""

    concurrency: int


@dataclass(frozen=True)
class ThawNoticed(Event, name="thaw.noticed"):
    """The process was given no time for `missed_s` seconds; the next job waits for a look at the server."""

    missed_s: float


@dataclass(frozen=True)
class ModelReloaded(Event, name="model.reloaded"):
    """The model was gone after a thaw and is resident again."""

    model: str


@dataclass(frozen=True)
class WorkerStopping(Event, name="worker.stopping"):
    """No new job is taken from here on."""

    reason: str


@dataclass(frozen=True)
class WorkerStopped(Event, name="worker.stopped"):
    """The last line of a worker."""

    exit_code: int
