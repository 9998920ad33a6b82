"""The facts of a boot, from the configuration to the loop, and of what is done again later."""

from __future__ import annotations

from dataclasses import dataclass

from worker.events.event import Event


@dataclass(frozen=True)
class ConfigLoaded(Event, name="config.loaded"):
    """The environment was read and is consistent."""

    model: str
    concurrency: int


@dataclass(frozen=True)
class SettingIgnored(Event, name="setting.ignored"):
    """The server cannot read the value of one of its variables; `text` names both and says what counts instead."""

    text: str


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
