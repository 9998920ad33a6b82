"""Ollama's registry (and hf.co through it) as a source: the server's own pull, with progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import requests
from urllib3.exceptions import ReadTimeoutError

PROGRESS_INTERVAL_S = 1.0
# The server is silent while it checks digests: 100 GB on a network volume of 200 MB/s take it more than 8 minutes.
SILENCE_LIMIT_S = 900.0


@dataclass(frozen=True)
class Miss:
    """Why a source cannot provide the weights; a value, because the next source is tried."""

    source: str
    reason: str


@dataclass(frozen=True)
class Progress:
    """How far a transfer is; bytes and bytes per second."""

    done_bytes: int
    total_bytes: int
    rate_bytes_per_s: float

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the present rate, or None while there is no rate."""
        left = self.total_bytes - self.done_bytes
        return left / self.rate_bytes_per_s if self.rate_bytes_per_s > 0 else None

    def fields(self) -> dict[str, Any]:
        """Return the figures as the event has them."""
        return {
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "rate_bytes_per_s": round(self.rate_bytes_per_s),
            "eta_s": self.eta_s and round(self.eta_s, 1),
        }


def pull(base_url: str, model: str, *, limit_s: float, report: Callable[[Progress], None]) -> Miss | None:
    """Let the server at `base_url` pull `model`; return None when it is whole, else why not.

    `report` is called at most once a second.
    """
    deadline = time.monotonic() + limit_s
    silence_s = min(limit_s, SILENCE_LIMIT_S)
    try:
        with requests.post(
            f"{base_url}/api/pull",
            json={"model": model},
            stream=True,
            timeout=(2.0, silence_s),
            proxies={"http": "", "https": ""},
        ) as reply:
            return _follow(_records(reply), deadline, report)
    except requests.RequestException as exc:
        # In the middle of an answer requests says ConnectionError for a timeout, too.
        if isinstance(exc, requests.Timeout) or any(isinstance(cause, ReadTimeoutError) for cause in exc.args):
            return Miss("registry", f"no progress for {silence_s:g} s")
        return Miss("registry", f"the server dropped the pull ({type(exc).__name__})")


def _records(reply: requests.Response) -> Iterator[dict[str, object]]:
    for line in reply.iter_lines():
        try:
            record = json.loads(line)
        except ValueError:
            record = {"error": f"unreadable answer: {line[:120]!r}"}
        yield record if isinstance(record, dict) else {"error": f"unexpected answer: {record!r:.120}"}


def _follow(records: Iterator[dict[str, object]], deadline: float, report: Callable[[Progress], None]) -> Miss | None:
    layers: dict[str, tuple[int, int]] = {}
    started = reported = time.monotonic()
    for record in records:
        now = time.monotonic()
        if "error" in record:
            return Miss("registry", str(record["error"]))
        if record.get("status") == "success":
            return None
        if now > deadline:
            return Miss("registry", "the pull did not finish within its limit")
        total = record.get("total")
        if isinstance(total, int):
            completed = record.get("completed")
            layers[str(record.get("digest"))] = (completed if isinstance(completed, int) else 0, total)
            if now - reported >= PROGRESS_INTERVAL_S:
                reported = now
                done = sum(layer[0] for layer in layers.values())
                report(Progress(done, sum(layer[1] for layer in layers.values()), done / (now - started)))
    return Miss("registry", "the pull ended without saying that it succeeded")
