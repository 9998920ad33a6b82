"""The sources a worker has, made of the values that configure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.s3 import NO_BUCKET, Bucket, taken_apart
from worker.sources.base import Source
from worker.sources.hub import HUB, Hub
from worker.sources.local import Local
from worker.sources.model_store import ModelStore
from worker.sources.object_store import ObjectStore
from worker.sources.volume import Volume

MODEL_CACHE = Path("/runpod-volume/huggingface-cache/hub")


@dataclass(frozen=True)
class Places:
    """Where weights may be.

    `stores` are Ollama's stores besides the one that is filled, by the name of their source; `caches` are Hugging Face
    caches. `mirror` has endpoint, region and keys of object storage, and with `prefix` the place of a mirror there.
    Without `server_url` no registry is asked; `ready` waits until the server answers.
    """

    stores: tuple[tuple[str, Path], ...] = ()
    caches: tuple[Path, ...] = (MODEL_CACHE,)
    mirror: Bucket = NO_BUCKET
    prefix: str = ""
    token: str = ""
    hub: str = HUB
    hub_own_transfer: bool = False
    server_url: str = ""
    ready: Callable[[], None] = lambda: None
    limit_s: float = 3600.0


def sources(places: Places) -> list[Source]:
    """Return every source of `places` in the order they are preferred."""
    found: list[Source] = [Local()]
    found += [Volume(models, name=name) for name, models in places.stores]
    found += [ModelStore(cache) for cache in places.caches]
    found += [ObjectStore(places.mirror, places.prefix), Hub(places.token, places.hub, places.hub_own_transfer)]
    if places.server_url:
        # requests takes longer to import than most models take to be found.
        from worker.sources.registry import Registry  # noqa: PLC0415

        found.append(Registry(places.server_url, places.ready, places.limit_s))
    return found


def object_storage(environ: Mapping[str, str], mirror: str = "") -> tuple[Bucket, str]:
    """Return bucket and prefix of `mirror`, an s3:// URL or "", with the account that AWS's variables describe.

    Raises:
        ValueError: `mirror` is no such URL.
    """
    bucket, prefix = taken_apart(mirror) if mirror else ("", "")
    account = Bucket(
        bucket,
        environ.get("AWS_ENDPOINT_URL_S3", "") or environ.get("AWS_ENDPOINT_URL", ""),
        environ.get("AWS_REGION", "") or environ.get("AWS_DEFAULT_REGION", "") or "us-east-1",
        environ.get("AWS_ACCESS_KEY_ID", ""),
        environ.get("AWS_SECRET_ACCESS_KEY", ""),
        environ.get("AWS_SESSION_TOKEN", ""),
    )
    return account, prefix
