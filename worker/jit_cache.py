"""Compiled kernels kept between containers: brought in before the load, taken out after the first job."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from worker import artifact
from worker.lease import Lease, LeaseLost

LEASE_TERM_S = 60.0
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
        digest = hashlib.sha256("\0".join((self.capability, self.driver, self.engine)).encode()).hexdigest()
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


class JitCache:
    """A local directory the driver compiles into, and its packed copy in a shared folder.

    Nothing here raises for what the shared folder may do: no cache is a slower start, not a failure.
    """

    def __init__(self, local: Path, shared: Path, key: Key) -> None:
        """Use `local` as the driver's cache and `shared` as the folder of packed copies."""
        self._local = local
        self._packed = shared / f"{key.name}.tar"
        self._lease = shared / f"{key.name}.lease"
        self._key = key
        self._hydrated: str | None = None

    def hydrate(self) -> Outcome:
        """Bring the packed kernels in; a corrupt or foreign copy is removed, so that the next worker replaces it."""
        try:
            inventory = self._install()
        except FileNotFoundError:
            return Outcome(done=False, reason="no worker has kept kernels for this device, driver and engine yet")
        except artifact.Corrupt as exc:
            return Outcome(done=False, reason=f"the kept kernels were unusable and are removed: {exc}{self._discard()}")
        except OSError as exc:
            return Outcome(done=False, reason=f"the kept kernels cannot be read: {exc.strerror or exc}")
        self._hydrated = inventory.identity
        return Outcome(done=True, files=len(inventory.entries), size_bytes=inventory.size_bytes)

    def persist(self) -> Outcome:
        """Keep what the driver has compiled, unless it is what was brought in or somebody else is writing it now."""
        try:
            return self._persist()
        except artifact.Corrupt as exc:
            return Outcome(done=False, reason=f"the driver is still compiling: {exc}")
        except LeaseLost as exc:
            return Outcome(done=False, reason=str(exc))
        except OSError as exc:
            return Outcome(done=False, reason=f"the kernels cannot be kept: {exc.strerror or exc}")

    def _install(self) -> artifact.Inventory:
        inventory = artifact.inspect(self._packed)
        if inventory.about != self._key.about():
            raise artifact.Corrupt("it was made for another device, driver or engine")
        return artifact.install(self._packed, self._local)

    def _persist(self) -> Outcome:
        found = artifact.take(self._local, self._key.about()) if self._local.is_dir() else None
        if found is None or not found.entries:
            return Outcome(done=False, reason="the driver compiled nothing")
        if found.identity == self._hydrated:
            return Outcome(done=False, reason="the driver compiled nothing new")
        lease = Lease.acquire(self._lease, term_s=LEASE_TERM_S, note=self._packed.name)
        if lease is None:
            return Outcome(done=False, reason="another worker is keeping them now")
        with lease.kept():
            return self._store(lease)

    def _store(self, lease: Lease) -> Outcome:
        fresh = self._packed.with_name(f".{self._packed.name}.{lease.owner}")
        try:
            inventory = artifact.pack(self._local, fresh, self._key.about())
            lease.check()
            fresh.replace(self._packed)
        finally:
            fresh.unlink(missing_ok=True)
        self._hydrated = inventory.identity
        return Outcome(done=True, files=len(inventory.entries), size_bytes=inventory.size_bytes)

    def _discard(self) -> str:
        try:
            self._packed.unlink(missing_ok=True)
        except OSError as exc:
            return f" (not removed: {exc.strerror})"
        return ""
