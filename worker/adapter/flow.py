"""The job flow: accept, parse, open, stream, close, with every failure turned into an answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from worker import chunks, events, job, openai_answer
from worker.adapter.inbox import Inbox
from worker.adapter.outcome import failure, whole
from worker.config import Config
from worker.errors import JobError, JobInvalid, ModelNotFound, ServerLost
from worker.job import Request
from worker.proxy import Proxy
from worker.shelf import Shelf
from worker.tally import Tally
from worker.thaw import Thaw

# The SDK spends a sixth of a millisecond on a post: with many streams over a fast line it would do nothing else, and
# reading the server's answers would have to wait.
POSTS_PER_S = 1000


class JobFlow:
    """Runs jobs against the server; `handle` is the generator the SDK iterates."""

    def __init__(self, config: Config, writer: events.EventWriter, shelf: Shelf) -> None:
        """Prepare to run jobs; connections are made inside the loop that calls `handle`."""
        self._config = config
        self._shelf = shelf
        self._events = writer
        self._proxy = Proxy(config.server_url, stall_timeout_s=config.stall_timeout_s)
        self._thaw = Thaw(self._proxy, writer, model=shelf.resident, limit_s=config.load_timeout_s)
        self._pumps: dict[str, asyncio.Task[None]] = {}
        self._tallies: dict[str, Tally] = {}

    async def close(self) -> None:
        """Close the connections to the server."""
        self._thaw.close()
        await self._proxy.close()

    def release(self, job_id: str) -> Tally | None:
        """Forget a job that ended or was stopped; stop reading its answer, which stops its generation.

        Return what it produced if it produced a whole answer.
        """
        pump = self._pumps.pop(job_id, None)
        if pump is not None:
            pump.cancel()
        return self._tallies.pop(job_id, None)

    async def handle(self, sdk_job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield what the platform should receive for one job; never raises an Exception."""
        job_id = str(sdk_job.get("id"))
        self._events.write(events.JobAccepted(job_id=job_id))
        request: Request | None = None
        tally = Tally()
        try:
            request = job.parse(
                sdk_job.get("input"),
                default_model=self._shelf.resident,
                allow_admin=self._config.allow_model_admin,
                allow_images=not self._config.skip_projector,
            )
            request = job.renamed(request, self._shelf.called(request.model))
            async with contextlib.aclosing(self._answer(job_id, request, tally)) as values:
                async for value in values:
                    tally.sent(value)
                    yield value
                    if tally.chunks == 1:
                        self._events.write(events.JobChunkPosted(job_id=job_id))
        except JobError as exc:
            error = exc
        except RecursionError:
            error = JobInvalid("the input is nested too deeply", "Send a flatter object")
        except Exception as exc:  # noqa: BLE001 - the one place where an unforeseen failure becomes a job's answer
            error = ServerLost(f"the worker failed on this job ({type(exc).__name__})", "Send it again")
            self._events.write(events.JobFailed(job_id=job_id, code="internal", status=500, message=repr(exc)))
        else:
            self._tallies[job_id] = tally
            return
        # Everything is closed by now: the SDK stops iterating at an error and cleans up whenever it likes.
        self._events.write(
            events.JobFailed(job_id=job_id, code=error.code, status=error.status, message=error.sentence())
        )
        as_body = self._config.openai_errors == "body"
        request = request or job.addressed(sdk_job.get("input"))
        yield failure(error, request, as_body=as_body, streaming=tally.chunks > 0)

    async def _answer(self, job_id: str, request: Request, tally: Tally) -> AsyncGenerator[Any, None]:
        inbox = Inbox()
        pump = asyncio.create_task(self._pump(job_id, request, inbox, tally))
        pump.add_done_callback(inbox.close)
        self._pumps[job_id] = pump
        try:
            # The first token goes alone; later ones travel with whatever arrived during the last post.
            batch = await inbox.take(one=True)
            while batch:
                began_s = time.monotonic()
                for value in _values(batch, request):
                    yield value
                pause_s = len(self._pumps) / POSTS_PER_S - (time.monotonic() - began_s)
                if pause_s > 0:
                    # An answer that is complete need not wait for company.
                    await asyncio.wait([pump], timeout=pause_s)
                batch = await inbox.take()
            await pump
        finally:
            self._pumps.pop(job_id, None)
            pump.cancel()
            await asyncio.wait([pump])

    async def _pump(self, job_id: str, request: Request, inbox: Inbox, tally: Tally) -> None:
        """Read the answer into `inbox` as fast as the server sends and the platform takes."""
        await self._thaw.settled()
        self._events.write(events.JobOpened(job_id=job_id, route=request.route.path, model=request.model))
        translated = openai_answer.translator(request)
        async with self._opened(request) as frames:
            first = True
            async for frame in frames:
                if first:
                    self._events.write(events.JobTokenReceived(job_id=job_id))
                    first = False
                tally.read(frame)
                await inbox.put(translated(frame))

    @contextlib.asynccontextmanager
    async def _opened(self, request: Request) -> AsyncIterator[AsyncGenerator[str, None]]:
        """Send a request; when the server has not got its model, have that brought if it may be, and send it again."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                frames = await stack.enter_async_context(self._proxy.open(request))
            except ModelNotFound as missing:
                if not request.model:
                    raise
                found = job.renamed(request, await self._shelf.bring(request.model, missing))
                frames = await stack.enter_async_context(self._proxy.open(found))
            yield frames


def _values(batch: list[str], request: Request) -> list[Any]:
    if not request.stream:
        return [whole(frame) for frame in batch]
    return list(chunks.join(batch, request.answered.framing))
