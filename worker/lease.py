"""A time-bounded right to write something shared, held as a file that network filesystems agree about."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RENEWALS_PER_TERM = 3


class LeaseLost(Exception):
    """Somebody took the lease over, or it could not be renewed in time."""


@dataclass
class Lease:
    """The right to write what `path` stands for, until `term_s` seconds after the last renewal.

    Ages are judged by the filesystem's clock, from the times it stamps on files, so that the clocks of workers may
    differ. Publish only after `check`: a holder that slept through its term has lost the lease without noticing.
    """

    path: Path
    owner: str
    term_s: float
    note: str = ""

    @classmethod
    def acquire(cls, path: Path, *, term_s: float, note: str = "") -> Lease | None:
        """Return the lease on `path`, or None while somebody else holds it; never waits.

        Raises:
            OSError: the folder cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        lease = cls(path, uuid.uuid4().hex, term_s, note)
        if lease._place():
            return lease
        stale = _read(path)
        if stale is None or _age_s(path) <= float(stale.get("term_s", term_s)):
            return None
        lease._clear_away(str(stale.get("owner")))
        return lease if lease._place() else None

    def check(self) -> None:
        """Raise LeaseLost unless this is still the holder and its term has not run out."""
        current = _read(self.path)
        if current is None or current.get("owner") != self.owner:
            raise LeaseLost(f"{self.path.name} was taken over")
        if _age_s(self.path) > self.term_s:
            raise LeaseLost(f"{self.path.name} ran out")

    def renew(self) -> None:
        """Begin the term anew; raise LeaseLost when it is over."""
        self.check()
        # The server's own clock: a time we gave would be our clock's.
        os.utime(self.path)

    def release(self) -> None:
        """Give the lease back if it is still ours."""
        current = _read(self.path)
        if current is not None and current.get("owner") == self.owner:
            with contextlib.suppress(OSError):
                self.path.unlink()

    @contextmanager
    def kept(self) -> Iterator[Lease]:
        """Renew in the background while the block runs, and release at its end."""
        over = threading.Event()

        def keep() -> None:
            while not over.wait(self.term_s / RENEWALS_PER_TERM):
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
            thread.join()
            self.release()

    def _place(self) -> bool:
        """Create the lease file, whole or not at all; return whether it is ours."""
        body = json.dumps({"owner": self.owner, "term_s": self.term_s, "note": self.note}).encode()
        own = self.path.with_name(f".{self.path.name}.{self.owner}")
        own.write_bytes(body)
        try:
            try:
                os.link(own, self.path)
            except FileExistsError:
                pass
            except OSError:
                return self._place_exclusively(body)
            # The reply to a link may be lost on the network although it was made: the count tells.
            return own.stat().st_nlink > 1
        finally:
            own.unlink(missing_ok=True)

    def _place_exclusively(self, body: bytes) -> bool:
        """Do without hard links, as some filesystems must; an empty lease is one being written."""
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(fd, "wb") as file:
            file.write(body)
        return True

    def _clear_away(self, stale_owner: str) -> None:
        """Move the stale lease away; put it back if it was another one by the time it moved."""
        away = self.path.with_name(f".{self.path.name}.{self.owner}.stale")
        try:
            self.path.rename(away)
        except FileNotFoundError:
            return
        moved = _read(away)
        if moved is not None and moved.get("owner") != stale_owner:
            with contextlib.suppress(OSError):
                os.link(away, self.path)
        away.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """Return the lease's content, {} when it cannot be understood, None when there is none."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _age_s(path: Path) -> float:
    """Return how long ago `path` was stamped, by the clock of the filesystem it is on; 0 when it is gone."""
    probe = path.with_name(f".{path.name}.{uuid.uuid4().hex}.now")
    try:
        probe.touch()
        return max(0.0, (probe.stat().st_mtime_ns - path.stat().st_mtime_ns) / 1e9)
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def wait(path: Path, limit_s: float, pause_s: float = 0.5) -> bool:
    """Wait until nobody holds `path`; return False after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
