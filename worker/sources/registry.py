"""Ollama's registry (and hf.co through it) as a source: the server's own pull, with progress."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import requests
from urllib3.exceptions import MaxRetryError, NewConnectionError, ReadTimeoutError

from worker import manifest
from worker.http_answer import Busy, TransferFailed, ask
from worker.manifest import MANIFEST_TYPE, Manifest
from worker.names import DEFAULT_HOST
from worker.progress import Progress
from worker.references import Wanted
from worker.sources.base import Delivery, Miss, Offer, SourceFailed

REGISTRY_BYTES_PER_S = 100e6
PLAIN = "http://"
PROGRESS_INTERVAL_S = 1.0
CONNECT_LIMIT_S = 2.0
# The server is silent while it checks digests: 100 GB on a network volume of 200 MB/s take it more than 8 minutes.
SILENCE_LIMIT_S = 900.0


@dataclass(frozen=True)
class Registry:
    """The registry that a model's name leads to, asked by the server at `base_url`.

    `ready` waits until that server answers, or raises; it must use the store that deliveries go to.
    """

    base_url: str
    ready: Callable[[], None]
    limit_s: float
    name: str = "registry"
    far: bool = True

    def offer(self, wanted: Wanted) -> Offer | Miss:
        """Offer every model that has a name of its own there, unseen: only the pull tells what there is."""
        if wanted.place or not wanted.settled or (wanted.repo and wanted.name.host == DEFAULT_HOST):
            return Miss(self.name, "it was not asked for by a registry's name", beside=True)
        return Offer(self.name, _needed_bytes(wanted), REGISTRY_BYTES_PER_S, self._bring)

    def _bring(self, delivery: Delivery) -> Manifest:
        store, wanted = delivery.store, delivery.wanted
        store.require_room(_needed_bytes(wanted) or 0)
        self.ready()

        def report(progress: Progress) -> None:
            delivery.halt()
            delivery.listener.progressed(self.name, progress)

        miss = pull(self.base_url, _pulled_as(wanted), limit_s=self.limit_s, report=report)
        if miss is not None:
            raise SourceFailed(miss.reason)
        name = manifest.spelled(store.root, wanted.name)
        found = manifest.read(store.root, name) if name is not None else None
        if found is None or found.lacks(store.root):
            raise SourceFailed(f"the server pulled it into another store than {store.root}")
        return found


def _pulled_as(wanted: Wanted) -> str:
    # Without TLS only when it was asked for so, in the only way Ollama's names have to say it.
    return wanted.text if wanted.text.startswith(PLAIN) else wanted.name.short


def _needed_bytes(wanted: Wanted) -> int | None:
    """Return the size of all layers as the registry's manifest tells, or None when it does not."""
    name = wanted.name
    host = f"{PLAIN if wanted.text.startswith(PLAIN) else 'https://'}{name.host}"
    try:
        _, body = ask(f"{host}/v2/{name.namespace}/{name.model}/manifests/{name.tag}", {"Accept": MANIFEST_TYPE})
        return manifest.parse(name, body).size_bytes
    except (TransferFailed, Busy, OSError, ValueError, http.client.HTTPException):
        return None


def pull(base_url: str, model: str, *, limit_s: float, report: Callable[[Progress], None]) -> Miss | None:
    """Let the server at `base_url` pull `model`; return None when it is whole, else why not.

    `report` is called at most once a second.
    """
    deadline = time.monotonic() + limit_s
    silence_s = min(limit_s, SILENCE_LIMIT_S)
    try:
        with requests.post(
            f"{base_url}/api/pull",
            json={"model": model, **({"insecure": True} if model.startswith(PLAIN) else {})},
            stream=True,
            timeout=(CONNECT_LIMIT_S, silence_s),
            proxies={"http": "", "https": ""},
        ) as reply:
            return _follow(_records(reply), deadline, report)
    except requests.RequestException as exc:
        if unheard := _unheard(exc):
            return Miss("registry", f"no server answers at {base_url} ({unheard})")
        # In the middle of an answer requests says ConnectionError for a timeout, too.
        if isinstance(exc, requests.Timeout) or any(isinstance(cause, ReadTimeoutError) for cause in exc.args):
            return Miss("registry", f"no progress for {silence_s:g} s")
        return Miss("registry", f"the server dropped the pull ({type(exc).__name__})")


def _unheard(failure: requests.RequestException) -> str:
    """Return why there was no connection at all, or ""."""
    if isinstance(failure, requests.ConnectTimeout):
        return f"no connection within {CONNECT_LIMIT_S:g} s"
    if isinstance(failure, (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema)):
        return "that is no http address"
    retried = failure.args[0] if failure.args else None
    reason = retried.reason if isinstance(retried, MaxRetryError) else None
    if not isinstance(reason, NewConnectionError):
        return ""
    cause = reason.__cause__
    return (cause.strerror if isinstance(cause, OSError) else None) or "it cannot be reached"


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
