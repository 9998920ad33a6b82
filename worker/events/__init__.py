"""Every fact the worker reports: one closed vocabulary, one JSON line each, and the spans between them.

Making a class of each takes milliseconds that would pass before the server is started, so most are made when one of
them, or the whole vocabulary, is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from worker.events.event import Event
from worker.events.of_worker import (
    ContainerStarted,
    ServerAnswered,
    ServerExited,
    ServerLogged,
    ServerSpawned,
    ServerStopped,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from worker.events.span import SPANS, Span
from worker.events.writer import RECENT_EVENTS, EventWriter, Listener

if TYPE_CHECKING:
    from worker.events.event import VOCABULARY
    from worker.events.of_boot import (
        BootFailed,
        BootReady,
        ConfigLoaded,
        GpuJudged,
        LoadFinished,
        LoadStarted,
        LoopStarted,
        ModelReloaded,
        PrimeFinished,
        PrimeStarted,
        SdkImportFinished,
        SdkImportStarted,
        SettingIgnored,
        ThawNoticed,
    )
    from worker.events.of_job import (
        JobAccepted,
        JobCancelled,
        JobChunkPosted,
        JobChunkUndelivered,
        JobFailed,
        JobFinished,
        JobOpened,
        JobTokenReceived,
        ResultRetried,
        ResultUndelivered,
    )
    from worker.events.of_weights import (
        HydrateFinished,
        HydrateStarted,
        JitCachePersisted,
        JitCacheUnneeded,
        LandingFinished,
        LandingStarted,
        SourcePassedOver,
        WeightsNoted,
        WeightsPlaced,
        WeightsProgressed,
        WeightsRequested,
    )

_LATER = ("of_boot", "of_job", "of_weights")


def __getattr__(name: str) -> Any:
    """Return what a module holds that is imported only now."""
    modules = [importlib.import_module(f"{__name__}.{module}") for module in (*_LATER, "event")]
    for module in modules:
        if not name.startswith("_") and hasattr(module, name):
            # Kept, so that no job comes here again.
            return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "RECENT_EVENTS",
    "SPANS",
    "VOCABULARY",
    "BootFailed",
    "BootReady",
    "ConfigLoaded",
    "ContainerStarted",
    "Event",
    "EventWriter",
    "GpuJudged",
    "HydrateFinished",
    "HydrateStarted",
    "JitCachePersisted",
    "JitCacheUnneeded",
    "JobAccepted",
    "JobCancelled",
    "JobChunkPosted",
    "JobChunkUndelivered",
    "JobFailed",
    "JobFinished",
    "JobOpened",
    "JobTokenReceived",
    "LandingFinished",
    "LandingStarted",
    "Listener",
    "LoadFinished",
    "LoadStarted",
    "LoopStarted",
    "ModelReloaded",
    "PrimeFinished",
    "PrimeStarted",
    "ResultRetried",
    "ResultUndelivered",
    "SdkImportFinished",
    "SdkImportStarted",
    "ServerAnswered",
    "ServerExited",
    "ServerLogged",
    "ServerSpawned",
    "ServerStopped",
    "SettingIgnored",
    "SourcePassedOver",
    "Span",
    "ThawNoticed",
    "WeightsNoted",
    "WeightsPlaced",
    "WeightsProgressed",
    "WeightsRequested",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStopping",
]
