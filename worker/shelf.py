"""The models jobs may name: the resident one under each of its names, and others brought when a job asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from worker.branch import branch
from worker.errors import ModelNotFound, ServerLost, WorkerError
from worker.names import NameInvalid
from worker.outset import Outset
from worker.references import Wanted, from_request
from worker.sources.chain import Placed


class Shelf:
    """Knows what the server calls each model. Use it inside one event loop."""

    def __init__(self, resident: str, start: Outset, *, pull: bool, bring: Callable[[Wanted], Placed]) -> None:
        """Serve `resident`, the server's name of the model that `start` wanted, and the others of `start`.

        With `pull` jobs may have any model brought; `bring` does that, blocking until it is whole.
        """
        self.resident = resident
        self._names = {start.wanted.text: resident, start.wanted.name.short: resident}
        if start.wanted.repo:
            self._names[start.wanted.repo] = resident
        self._others = {other.text: other for other in start.others}
        self._pull = pull
        self._bring = bring
        self._coming: dict[str, asyncio.Future[Placed]] = {}

    def called(self, asked: str) -> str:
        """Return what the server calls the model that a job asks for, as far as that is known."""
        return self._names.get(asked, asked)

    async def bring(self, asked: str, missing: ModelNotFound) -> str:
        """Have a model brought that the server has not got; return what the server calls it then.

        Raises:
            ModelNotFound: it may not be brought (`missing` then), or no source has it.
            ServerLost: the server went away meanwhile.
        """
        try:
            wanted = self._others.get(asked) or from_request(asked)
        except NameInvalid:
            raise missing from None
        # Asked for by its name, it still comes from the place that is in the list.
        listed = next((other for other in self._others.values() if other.name == wanted.name), None)
        if not (self._pull or listed):
            raise missing
        # Jobs that ask for the same model at once wait for the same download.
        coming = self._coming.get(asked) or self._fetch(asked, listed or wanted)
        try:
            placed = await asyncio.shield(coming)
        except WorkerError as exc:
            raise (ServerLost if exc.retryable else ModelNotFound)(exc.message, exc.hint) from exc
        self._names[asked] = placed.name
        return placed.name

    def _fetch(self, asked: str, wanted: Wanted) -> asyncio.Future[Placed]:
        """Begin to bring a model, in a thread that does not keep a worker alive that is told to stop."""
        coming = self._coming[asked] = asyncio.wrap_future(branch("bring", lambda: self._bring(wanted)))
        coming.add_done_callback(lambda _: self._coming.pop(asked, None))
        return coming
