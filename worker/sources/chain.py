"""Ask who has the model, take the fastest offer that works, once per fleet."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker import manifest
from worker.branch import branch
from worker.errors import WeightsUnavailable
from worker.http_answer import TransferFailed
from worker.lease import Lease
from worker.location import Absent, Located, locate
from worker.manifest import Manifest
from worker.progress import Halted, Progress
from worker.references import Wanted
from worker.registration import redressed
from worker.sources.base import NOBODY, SOURCES, Delivery, Listener, Miss, Offer, Source, SourceFailed
from worker.sources.turn import Fence, Turn, WaitedInVain
from worker.store import Store

# Damaged files, unreadable metadata and manifests are ValueErrors.
_FAILURES = (SourceFailed, TransferFailed, ValueError, OSError)


@dataclass(frozen=True)
class Placed:
    """A model that is whole in a store: what the server calls it, where that is, and which source it came from."""

    name: str
    models: Path
    source: str
    manifest: Manifest


@dataclass(frozen=True)
class Policy:
    """How sources are tried.

    `in_order` keeps the order they are given in, however fast they say they are. `limit_s` bounds waiting for another
    worker; a worker that dies is taken over from after `term_s`.
    """

    in_order: bool = False
    limit_s: float = 3600.0
    term_s: float = 60.0


USUAL = Policy()


def chosen(sources: Sequence[Source], names: Sequence[str]) -> list[Source]:
    """Return the sources called `names`, in that order; all of them when `names` is empty.

    Raises:
        ValueError: there is no source of such a name.
    """
    for name in names:
        if name not in SOURCES:
            raise ValueError(f"there is no source {name!r}; there are {', '.join(SOURCES)}")
    return [source for name in names for source in sources if source.name == name] if names else list(sources)


def ranked(offers: Sequence[Offer], *, in_order: bool) -> list[Offer]:
    """Return offers in the order they are to be tried: fastest first, equal ones as they came."""
    return list(offers) if in_order else sorted(offers, key=lambda offer: offer.expected_s)


def tiers(sources: Sequence[Source], *, in_order: bool) -> list[list[Source]]:
    """Return sources in groups that are asked together: what is near before anything that goes over a network."""
    if in_order:
        return [[source] for source in sources]
    groups = [[source for source in sources if source.far is far] for far in (False, True)]
    return [group for group in groups if group]


def place(
    wanted: Wanted,
    sources: Sequence[Source],
    store: Store,
    listener: Listener = NOBODY,
    policy: Policy = USUAL,
) -> Placed:
    """Put the model into `store`, whole and verified, unless it is there; blocks until then.

    Raises:
        WeightsUnavailable: no source could; its message has every Miss.
    """
    there = locate([store.root], wanted)
    if isinstance(there, Located):
        return _placed(store, there.manifest, "local")
    turn = Turn(store, wanted, policy.term_s)
    deadline_s = time.monotonic() + policy.limit_s
    try:
        while True:
            outcome = turn.take(max(0.0, deadline_s - time.monotonic()), listener.progressed)
            if isinstance(outcome, Located):
                return _placed(store, outcome.manifest, "volume")
            try:
                return _place_in_turn(turn, outcome, sources, listener, policy)
            except Halted as exc:
                listener.noted(str(exc))
    except WaitedInVain as exc:
        raise WeightsUnavailable(f"{wanted.text!r} is not there: {exc}", "Look at the worker that holds it") from exc
    except OSError as exc:
        hint = "OLLAMA_MODELS must be a folder that can be written to, or hold the model already"
        raise WeightsUnavailable(f"{store.root} cannot be used: {exc.strerror or exc}", hint) from exc


def _place_in_turn(turn: Turn, lease: Lease, sources: Sequence[Source], listener: Listener, policy: Policy) -> Placed:
    store, wanted = turn.store, turn.wanted

    def progressed(source: str, progress: Progress) -> None:
        turn.tell(source, progress)
        listener.progressed(source, progress)

    telling = Listener(progressed, listener.passed_over, listener.noted)
    with lease.kept():
        try:
            there = locate([store.root], wanted)
            if (kept := _redressed(store, wanted, there)) is not None:
                return _placed(store, kept, "local")
            misses = _damage(store, wanted, there)
            for group in tiers(sources, in_order=policy.in_order):
                for offer in ranked(_offers(group, wanted, misses, telling), in_order=policy.in_order):
                    delivery = Delivery(offer.source, wanted, store, telling, Fence(lease).halt)
                    found = _brought(offer, delivery, misses)
                    if found is not None:
                        return _placed(store, found, offer.source)
        finally:
            turn.over()
    told = [miss for miss in misses if not miss.beside] or misses
    tried = "; ".join(f"{miss.source}: {miss.reason}" for miss in told)
    raise WeightsUnavailable(f"no source has {wanted.text!r}: {tried or 'there is no source'}", wanted.hint)


def _damage(store: Store, wanted: Wanted, found: Located | Absent) -> list[Miss]:
    """Return what is wrong with the model as the store has it; a model that is not there at all is no damage."""
    known = manifest.spelled(store.root, wanted.name) is not None
    return [Miss("local", reason) for reason in found.reasons] if known and isinstance(found, Absent) else []


def _offers(group: Sequence[Source], wanted: Wanted, misses: list[Miss], listener: Listener) -> list[Offer]:
    """Ask all sources of a group at once; a source that takes long does not keep the process from ending."""
    asked = [branch("offer", functools.partial(source.offer, wanted)) for source in group]
    answers = [asking.result() for asking in asked]
    for answer in answers:
        if isinstance(answer, Miss):
            _pass_over(answer, misses, listener)
    return [answer for answer in answers if isinstance(answer, Offer)]


def _brought(offer: Offer, delivery: Delivery, misses: list[Miss]) -> Manifest | None:
    try:
        return offer.bring(delivery)
    except _FAILURES as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc) or type(exc).__name__
        _pass_over(Miss(offer.source, reason), misses, delivery.listener)
        return None


def _pass_over(miss: Miss, misses: list[Miss], listener: Listener) -> None:
    misses.append(miss)
    listener.passed_over(miss)


def _redressed(store: Store, wanted: Wanted, found: Located | Absent) -> Manifest | None:
    """Return a model that is there and only needed another template or projector."""
    if not isinstance(found, Absent) or found.unfit is None:
        return None
    try:
        registered = redressed(
            store, found.unfit.manifest, template=wanted.template, skip_projector=wanted.skip_projector
        )
    except _FAILURES:
        # The sources may still have it whole.
        return None
    return registered.manifest if registered else None


def _placed(store: Store, found: Manifest, source: str) -> Placed:
    store.mark_used(found)
    return Placed(found.name.short, store.root, source, found)
