"""The facts of a model's weights and of its compiled kernels, from the search for them to where they are read."""

from __future__ import annotations

from dataclasses import dataclass

from worker.events.event import Event


@dataclass(frozen=True)
class WeightsRequested(Event, name="weights.requested"):
    """The search for the model's weights began."""

    model: str


@dataclass(frozen=True)
class SourcePassedOver(Event, name="source.passed_over"):
    """A source could not or should not provide the weights."""

    source: str
    reason: str


@dataclass(frozen=True)
class WeightsProgressed(Event, name="weights.progressed"):
    """A long transfer moved on; at most one line a second."""

    source: str
    done_bytes: int
    total_bytes: int
    rate_bytes_per_s: float
    eta_s: float | None


@dataclass(frozen=True)
class WeightsPlaced(Event, name="weights.placed"):
    """The weights are whole in a store on this machine; `model` is what the server calls them."""

    model: str
    source: str
    store: str


@dataclass(frozen=True)
class WeightsNoted(Event, name="weights.noted"):
    """Something was decided about the weights that whoever deployed the worker should know."""

    text: str


@dataclass(frozen=True)
class LandingStarted(Event, name="landing.started"):
    """A file of the model may be copied from distant storage to local disk."""

    path: str


@dataclass(frozen=True)
class LandingFinished(Event, name="landing.finished"):
    """The file is where the server is to read it, and why there; `method` is empty when it stayed where it was."""

    path: str
    method: str
    size_bytes: int
    reason: str


@dataclass(frozen=True)
class HydrateStarted(Event, name="hydrate.started"):
    """Kernels that other workers compiled are brought to local disk."""


@dataclass(frozen=True)
class HydrateFinished(Event, name="hydrate.finished"):
    """They are there, or are not, and why not."""

    done: bool
    reason: str
    files: int
    size_bytes: int


@dataclass(frozen=True)
class JitCacheUnneeded(Event, name="jit_cache.unneeded"):
    """No kernel will be compiled at run time, so none is kept."""

    reason: str


@dataclass(frozen=True)
class JitCachePersisted(Event, name="jit_cache.persisted"):
    """What the driver compiled is kept for the next worker, or is not, and why not."""

    done: bool
    reason: str
    files: int
    size_bytes: int
