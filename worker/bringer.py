"""Models brought into the store from wherever they are fastest, as the configuration says, told as events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from worker import events
from worker.folders import BAKED
from worker.outset import Outset
from worker.references import Wanted
from worker.s3 import Bucket, taken_apart
from worker.sources import chain
from worker.sources.base import Listener, Miss
from worker.sources.chain import Placed
from worker.sources.standard import Places, sources
from worker.store import Store

if TYPE_CHECKING:
    from worker.config import Config
    from worker.progress import Progress


class Bringer:
    """Knows the sources. `ready` blocks until the server answers; `check` raises when it is gone."""

    def __init__(
        self,
        start: Outset,
        config: Config,
        writer: events.EventWriter,
        *,
        ready: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        """Prepare; no source is asked yet."""
        self._start = start
        self._config = config
        self._events = writer
        self._ready = ready
        self._check = check

    def bring(self, wanted: Wanted) -> Placed:
        """Put a model into the first store, unless it is there; blocks until it is whole.

        Raises:
            WeightsUnavailable: no source has it; its message has every Miss.
            ServerExited: the server ended meanwhile.
        """
        config = self._config
        asked = chain.chosen(sources(self._places()), config.sources)
        policy = chain.Policy(in_order=bool(config.sources), limit_s=config.weights_timeout_s)
        store = Store(self._start.stores[0], symlinks=True)
        placed = chain.place(wanted, asked, store, Listener(self._progressed, self._passed_over, self._noted), policy)
        self._events.write(
            events.WeightsPlaced(model=placed.name, source=placed.source, store=str(placed.models)),
        )
        return placed

    def _places(self) -> Places:
        config = self._config
        bucket, prefix = taken_apart(config.object_store) if config.object_store else ("", "")
        account = Bucket(
            bucket,
            config.aws_endpoint or "",
            config.aws_region,
            config.aws_key_id or "",
            config.aws_secret or "",
            config.aws_session or "",
        )
        return Places(
            stores=tuple(
                ("local" if path == BAKED else "volume", path) for path in self._start.stores[1:] if path.is_dir()
            ),
            caches=(Path(config.model_cache),),
            mirror=account,
            prefix=prefix,
            token=config.hf_token or "",
            hub=config.hf_endpoint,
            hub_own_transfer=config.hub_transfer,
            server_url=self._start.server_url,
            ready=self._ready,
            limit_s=config.weights_timeout_s,
        )

    def _progressed(self, source: str, progress: Progress) -> None:
        # A model nobody will load is not worth its bytes.
        self._check()
        self._events.write(events.WeightsProgressed(source=source, **progress.fields()))

    def _passed_over(self, miss: Miss) -> None:
        self._events.write(events.SourcePassedOver(source=miss.source, reason=miss.reason))

    def _noted(self, text: str) -> None:
        self._events.write(events.WeightsNoted(text=text))
