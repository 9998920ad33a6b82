"""A model file made near: landed on local disk when that pays, else read where it lies, and the reason either way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from worker import bounded, partial, placement, storage
from worker.landing import USUAL, Landed, Terms, land
from worker.pace import Slower
from worker.progress import Meter


@dataclass(frozen=True)
class Arrival:
    """The path the server is to read, why it is that one, and what the landing did when there was one."""

    path: Path
    reason: str
    landed: Landed | None = None


def bring(
    source: Path,
    folders: Sequence[Path],
    terms: Terms = USUAL,
    *,
    meter: Meter | None = None,
) -> Arrival:
    """Make `source` near, in one of `folders` if need be; what killed landings left there is removed first.

    Storage that is slow, hangs, is full or fails is no error here: the file is then read in place, and the server's own
    limits hold.

    Raises:
        Damaged: the file was read and does not have the digest `terms.sha256`.
        Halted: `meter` said so.
    """
    for folder in folders:
        partial.reclaim(folder)
    try:
        plan = bounded.call(lambda: _plan(source, folders), terms.stall_s, str(source))
        if plan.target is None:
            return Arrival(source, plan.reason)
        terms = replace(terms, reread_bytes=plan.reread_bytes, cached_share=plan.cached_share)
        landed = land(source, plan.target / source.name, terms, meter=meter)
    except Slower as exc:
        return Arrival(source, f"reading in place is faster: {exc}")
    except OSError as exc:
        return Arrival(source, f"it could not be landed: {exc}")
    return Arrival(landed.path, plan.reason, landed)


def _plan(source: Path, folders: Sequence[Path]) -> placement.Plan:
    where = storage.place(source)
    if not where.distant:
        # This is on the way of every boot: nothing else is looked at.
        return placement.plan(placement.ModelFile(where, 0, 0.0), [], None)
    file = placement.ModelFile(where, source.stat().st_size, storage.cached_share(source))
    return placement.plan(file, [storage.place(folder) for folder in folders], storage.memory_headroom_bytes())
