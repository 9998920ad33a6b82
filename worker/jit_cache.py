"""Compiled kernels kept between containers: brought in before the load, taken out after the first job."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from worker import artifact, bounded, inventory
from worker.inventory import Corrupt, Inventory
from worker.lease import Lease, LeaseLost

LEASE_TERM_S = 90.0
# Longer than any boot gains from the kernels; a healthy volume takes some seconds.
HYDRATE_LIMIT_S = 30.0
PERSIST_LIMIT_S = 600.0
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True)
class Key:
    """What compiled kernels depend on: another value of any of these makes them useless.

    `capability` as in "9.0", `driver` as in "550.127.05", `engine` names the build of the kernels' source.
    """

    capability: str
    driver: str
    engine: str

    @property
    def name(self) -> str:
        """A file name, readable and unique to the key."""
        text = "-".join(
            _UNSAFE.sub("_", part) for part in (f"sm{self.capability}", f"driver{self.driver}", self.engine)
        )
        digest = hashlib.sha256(f"{self.capability}\0{self.driver}\0{self.engine}".encode()).hexdigest()
        return f"{text[:120]}-{digest[:12]}"

    def about(self) -> dict[str, str]:
        """Return the key as it is written into the artifact."""
        return {"capability": self.capability, "driver": self.driver, "engine": self.engine}


@dataclass(frozen=True)
class Outcome:
    """What hydrating or persisting did: `done` with files and bytes, or not, and why."""

    done: bool
    reason: str = ""
    files: int = 0
    size_bytes: int = 0


class _Late(OSError):
    """The kernels came when nobody waited for them any more."""


class JitCache:
    """A local directory the driver compiles into, and its packed copy in a shared folder.

    Nothing here raises for what the shared folder may do, or waits for it without end: no cache is a slower start, not
    a failure.
    """

    def __init__(self, local: Path, shared: Path, key: Key) -> None:
        """Use `local` as the driver's cache and `shared` as the folder of packed copies."""
        self._local = local
        self._packed = shared / f"{key.name}.tar"
        self._lease = shared / f"{key.name}.lease"
        self._key = key
        self._hydrated: str | None = None

    def hydrate(self, limit_s: float = HYDRATE_LIMIT_S) -> Outcome:
        """Bring the packed kernels in; a corrupt or foreign copy is removed, so that the next worker replaces it.

        After `limit_s` seconds it is given up, and the local directory stays as it is from then on.
        """
        given_up = threading.Event()
        try:
            return bounded.call(lambda: self._hydrate(given_up), limit_s, "the shared folder")
        except FileNotFoundError:
            return Outcome(done=False, reason="no worker has kept kernels for this device, driver and engine yet")
        except OSError as exc:
            given_up.set()
            return Outcome(done=False, reason=f"the kept kernels cannot be read: {exc.strerror or exc}")

    def persist(self, limit_s: float = PERSIST_LIMIT_S) -> Outcome:
        """Keep what the driver has compiled, unless it is kept already or somebody else is writing it now."""
        try:
            return bounded.call(self._persist, limit_s, "the shared folder")
        except OSError as exc:
            return Outcome(done=False, reason=f"the kernels cannot be kept: {exc.strerror or exc}")

    def _hydrate(self, given_up: threading.Event) -> Outcome:
        def confirm() -> None:
            if given_up.is_set():
                raise _Late

        seen = self._packed.stat()
        try:
            if artifact.inspect(self._packed).about != self._key.about():
                raise Corrupt("it was made for another device, driver or engine")  # noqa: TRY301 - handled like damage
            artifact.sweep(self._local)
            installed = artifact.install(self._packed, self._local, confirm)
        except Corrupt as exc:
            return Outcome(done=False, reason=f"the kept kernels are unusable: {exc}; {self._discard(seen)}")
        self._hydrated = installed.identity
        return _done(installed)

    def _discard(self, seen: os.stat_result) -> str:
        try:
            # Another worker may have replaced it meanwhile: what was not read is not judged.
            if _version(self._packed.stat()) != _version(seen):
                return "another worker has replaced them"
            self._packed.unlink()
        except OSError as exc:
            return f"they cannot be removed: {exc.strerror}"
        return "they are removed"

    def _persist(self) -> Outcome:
        try:
            found = inventory.take(self._local, self._key.about())
            if not found.entries:
                return Outcome(done=False, reason="the driver compiled nothing")
            if found.identity in {self._hydrated, self._kept()}:
                return Outcome(done=False, reason="the driver compiled nothing new")
            lease = Lease.acquire(self._lease, term_s=LEASE_TERM_S, note=self._packed.name)
            if lease is None:
                return Outcome(done=False, reason="another worker is keeping them now")
            with lease.kept():
                artifact.sweep(self._packed)
                packed = artifact.pack(self._local, self._packed, self._key.about(), lease.check)
        except Corrupt as exc:
            return Outcome(done=False, reason=f"the driver is still compiling: {exc}")
        except LeaseLost as exc:
            return Outcome(done=False, reason=f"the right to keep them was lost: {exc}")
        self._hydrated = packed.identity
        return _done(packed)

    def _kept(self) -> str | None:
        """Return the identity of what is kept already, or None when there is nothing usable."""
        with contextlib.suppress(OSError, Corrupt):
            return artifact.inspect(self._packed).identity
        return None


def _done(found: Inventory) -> Outcome:
    return Outcome(done=True, files=len(found.entries), size_bytes=found.size_bytes)


def _version(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
