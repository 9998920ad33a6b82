"""What a source is: it says what it offers for a model, brings it into a store, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from worker.manifest import Manifest
from worker.progress import Meter, Progress
from worker.references import Wanted
from worker.store import Store

# In the order in which they are preferred when nothing else tells them apart. A peer comes after local.
SOURCES = ("local", "volume", "model_store", "object_store", "hub", "registry")


@dataclass(frozen=True)
class Miss:
    """Why a source cannot provide the weights; a value, because the next source is tried.

    `beside` says that such a model is never looked for there: no news to whoever asked for it.
    """

    source: str
    reason: str
    beside: bool = False


class SourceFailed(Exception):
    """A source could not bring what it offered; the message says why."""


def _nothing(*_: object) -> None:
    """Ignore what is told."""


@dataclass(frozen=True)
class Listener:
    """Who is told what happens on the way: how far a source is, who was passed over, what was decided for the user."""

    progressed: Callable[[str, Progress], None] = _nothing
    passed_over: Callable[[Miss], None] = _nothing
    noted: Callable[[str], None] = _nothing


NOBODY = Listener()


@dataclass(frozen=True)
class Delivery:
    """One attempt of one source: what is wanted, the store it goes into, who listens, and what stops it."""

    source: str
    wanted: Wanted
    store: Store
    listener: Listener
    halt: Callable[[], None]

    def metered(self, total_bytes: int, already_bytes: int = 0) -> Meter:
        """Return a meter for a step of so many bytes."""

        def report(progress: Progress) -> None:
            self.listener.progressed(self.source, progress)

        return Meter(total_bytes, report, halt=self.halt, already_bytes=already_bytes)


@dataclass(frozen=True)
class Offer:
    """A model that a source has: how many bytes would have to move (None: it cannot tell), and how fast they might.

    `bring` puts the model into the delivery's store, whole, and returns its manifest there. It raises SourceFailed,
    http_answer.TransferFailed, known_digest.Damaged, gguf_file.GgufInvalid or OSError when it cannot, and
    progress.Halted when it was stopped.
    """

    source: str
    moved_bytes: int | None
    rate_bytes_per_s: float
    bring: Callable[[Delivery], Manifest]

    @property
    def expected_s(self) -> float:
        """How long it is expected to take; what cannot tell comes last."""
        return float("inf") if self.moved_bytes is None else self.moved_bytes / self.rate_bytes_per_s


class Source(Protocol):
    """Somewhere weights can come from. `far` ones are asked only when no near one has the model."""

    @property
    def name(self) -> str:
        """One of SOURCES."""

    @property
    def far(self) -> bool:
        """Whether asking goes over a network."""

    def offer(self, wanted: Wanted) -> Offer | Miss:
        """Return what there is for `wanted`; does not raise for what disks and networks do."""
