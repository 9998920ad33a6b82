"""A time-bounded right to write something shared, held as a file that network filesystems agree about."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RENEWALS_PER_TERM = 3


class LeaseLost(Exception):
    """Somebody took the lease over, or it could not be renewed in time."""


@dataclass(frozen=True)
class _Found:
    """A lease file as one opening of it showed it: opening makes a network filesystem ask for the newest."""

    content: dict[str, Any]
    stamped_ns: int

    @property
    def owner(self) -> str | None:
        owner = self.content.get("owner")
        return owner if isinstance(owner, str) else None

    def term_s(self, otherwise: float) -> float:
        term_s = self.content.get("term_s")
        return float(term_s) if isinstance(term_s, int | float) else otherwise


@dataclass(frozen=True)
class Lease:
    """The right to write what `path` stands for, until `term_s` seconds after the last renewal.

    Ages are judged by the filesystem's clock, from the times it stamps on files, so that the clocks of workers may
    differ. A network filesystem may show a time that is some seconds old: terms are to be a minute or more there.
    Publish only after `check`: a holder that slept through its term has lost the lease without noticing.
    """

    path: Path
    term_s: float
    note: str = ""
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def acquire(cls, path: Path, *, term_s: float, note: str = "") -> Lease | None:
        """Return the lease on `path`, or None while somebody else holds it; never waits.

        Raises:
            OSError: the folder cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        lease = cls(path, term_s, note)
        if lease._place():
            return lease
        found = _read(path)
        if found is None:
            return lease if lease._place() else None
        if _age_s(path, found) <= found.term_s(term_s):
            return None
        return lease if lease._inherit(found) else None

    def check(self) -> None:
        """Raise LeaseLost unless this is the holder and its term has not run out; OSError when nothing tells."""
        found = _read(self.path)
        if found is None or found.owner != self.owner:
            raise LeaseLost(f"{self.path.name} was taken over")
        if _age_s(self.path, found) > self.term_s:
            raise LeaseLost(f"{self.path.name} ran out")

    def renew(self) -> None:
        """Begin the term anew; raise LeaseLost when it is over."""
        self.check()
        # The filesystem's own clock: a time we gave would be our clock's.
        os.utime(self.path)

    def release(self) -> None:
        """Give the lease back if it is still ours."""
        with contextlib.suppress(OSError):
            found = _read(self.path)
            if found is not None and found.owner == self.owner:
                self.path.unlink()

    @contextmanager
    def kept(self) -> Iterator[Lease]:
        """Renew in the background while the block runs, and release at its end."""
        over = threading.Event()

        def keep() -> None:
            while not over.wait(self.term_s / RENEWALS_PER_TERM):
                # A filesystem that fails for a moment may be back for the next renewal.
                with contextlib.suppress(OSError):
                    try:
                        self.renew()
                    except LeaseLost:
                        return

        thread = threading.Thread(target=keep, name="lease", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join(self.term_s)
            self.release()

    def _place(self) -> bool:
        """Create the lease file, whole or not at all; return whether it is ours."""
        with self._written() as own:
            return self._linked(own, self.path)

    def _inherit(self, stale: _Found) -> bool:
        """Take the place of a stale lease unless another heir does; return whether it is ours."""
        # There is one name for the claim to this lease, so of those who found it stale one goes on; whoever comes after
        # that finds another lease in its place.
        whose = hashlib.sha256(repr(stale.owner).encode()).hexdigest()[:32]
        claim = self.path.with_name(f".{self.path.name}.{whose}.heir")
        with self._written() as own:
            if not self._linked(own, claim):
                self._forget_dead(claim)
                return False
            try:
                if _read(self.path) != stale:
                    return False
                own.replace(self.path)
            finally:
                claim.unlink(missing_ok=True)
        return True

    def _forget_dead(self, claim: Path) -> None:
        """Remove the claim of an heir that died of it, for the next one to come."""
        found = _read(claim)
        if found is not None and _age_s(claim, found) > self.term_s:
            claim.unlink(missing_ok=True)

    @contextmanager
    def _written(self) -> Iterator[Path]:
        """Give the lease's content under a name that nobody else has."""
        own = self.path.with_name(f".{self.path.name}.{self.owner}")
        try:
            own.write_bytes(self._body())
            yield own
        finally:
            own.unlink(missing_ok=True)

    def _body(self) -> bytes:
        return json.dumps({"owner": self.owner, "term_s": self.term_s, "note": self.note}).encode()

    def _linked(self, own: Path, path: Path) -> bool:
        """Give what is at `own` the name `path` as well; return whether that is ours now."""
        try:
            os.link(own, path)
        except FileExistsError:
            # The reply to a link may be lost on the network although it was made, and the link tried again.
            found = _read(path)
            return found is not None and found.owner == self.owner
        except OSError:
            return self._created(path)
        return True

    def _created(self, path: Path) -> bool:
        """Do without hard links, as some filesystems must; an empty lease is one being written."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(self._body())
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return True


def _read(path: Path) -> _Found | None:
    """Return the lease at `path`, without content when it cannot be understood, or None when there is none."""
    try:
        with path.open("rb") as file:
            stamped_ns = os.fstat(file.fileno()).st_mtime_ns
            raw = file.read()
    except FileNotFoundError:
        return None
    try:
        content = json.loads(raw)
    except ValueError:
        content = None
    return _Found(content if isinstance(content, dict) else {}, stamped_ns)


def _age_s(path: Path, found: _Found) -> float:
    """Return how long ago a lease was stamped, by the clock of the filesystem it is on."""
    probe = path.with_name(f".{path.name}.{uuid.uuid4().hex}.now")
    try:
        probe.touch()
        return max(0.0, (probe.stat().st_mtime_ns - found.stamped_ns) / 1e9)
    finally:
        probe.unlink(missing_ok=True)
