"""The queue for synchronous code: a server in a background thread, and its jobs as method calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from worker.local.queue.faults import Faults
from worker.local.queue.job import Order
from worker.local.queue.limits import Limits
from worker.local.queue.record import Record
from worker.local.queue.server import ENDPOINT_ID, PREFIX, Beside, QueueServer
from worker.local.queue.watch import next_chunks, until_final

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class LocalQueue:
    """Runpod's API for one endpoint on a loopback port. A context manager; methods may be called from any thread.

    `base_url` is the server's root, `api_url` what Runpod's client wants as RUNPOD_ENDPOINT_BASE_URL, `openai_url`
    what an OpenAI client wants as base_url. `record` tells what workers did, `faults` changes how they are answered.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: Faults | None = None,
        limits: Limits | None = None,
        api_key: str | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Prepare a queue on `port`, or on a free one when it is 0. None as `api_key` lets everybody in.

        `beside` makes, inside the server's loop, the application of every path that is not the queue's own.
        """
        self.endpoint_id = ENDPOINT_ID
        self.faults = faults or Faults()
        self.limits = limits or Limits()
        self.record = Record(self.limits.kept_calls)
        self._address = (host, port)
        self._api_key = api_key
        self._server = QueueServer(self.limits, self.faults, self.record, api_key, beside=beside)
        self._thread = threading.Thread(target=self._run, name="local-queue", daemon=True)
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._port: Future[int] = Future()

    def __enter__(self) -> Self:
        """Start; see `start`."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; see `stop`."""
        self.stop()

    def start(self) -> None:
        """Listen, or raise OSError or OverflowError when the port cannot be had."""
        self._thread.start()
        self._port.result()

    def stop(self) -> None:
        """Answer the held polls, close every connection and end the thread; more than once does no harm."""
        if not self._thread.is_alive():
            return
        self._loop.result().call_soon_threadsafe(self._server.stop)
        self._thread.join()

    @property
    def base_url(self) -> str:
        """Return `http://host:port` as somebody on this machine calls it."""
        host = self._address[0]
        return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{self._port.result()}"  # noqa: S104 - compared

    @property
    def api_url(self) -> str:
        """Return the URL below which endpoints live."""
        return f"{self.base_url}/v2"

    @property
    def openai_url(self) -> str:
        """Return the URL of the OpenAI route."""
        return f"{self.base_url}{PREFIX}/openai/v1"

    def worker_env(self, worker_id: str = "worker-1") -> dict[str, str]:
        """Return the variables that make the SDK's loop a worker of this queue; `$ID` stays for the SDK to fill in."""
        root = f"{self.base_url}{PREFIX}"
        return {
            "RUNPOD_WEBHOOK_GET_JOB": f"{root}/job-take/$ID?gpu=LOCAL",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{root}/job-done/$RUNPOD_POD_ID/$ID?gpu=LOCAL",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{root}/job-stream/$RUNPOD_POD_ID/$ID?gpu=LOCAL",
            "RUNPOD_WEBHOOK_PING": f"{root}/ping/$RUNPOD_POD_ID?gpu=LOCAL",
            "RUNPOD_POD_ID": worker_id,
            "RUNPOD_AI_API_KEY": self._api_key or "local",
            "RUNPOD_ENDPOINT_ID": ENDPOINT_ID,
            # The SDK divides by 1000 and dies of a zero.
            "RUNPOD_PING_INTERVAL": str(max(1000, round(self.limits.ping_interval_s * 1000))),
            "RUNPOD_DEBUG_LEVEL": "INFO",
        }

    def submit(
        self,
        job_input: Any,
        *,
        execution_timeout_s: float | None = None,
        ttl_s: float | None = None,
        low_priority: bool = False,
        webhook: str | None = None,
    ) -> str:
        """Queue a job and return its id. Unlike over HTTP, limits of the policy's range do not apply."""
        order = Order(
            job_input,
            execution_timeout_s=self.limits.execution_timeout_s if execution_timeout_s is None else execution_timeout_s,
            ttl_s=self.limits.ttl_s if ttl_s is None else ttl_s,
            retention_s=self.limits.run_retention_s,
            low_priority=low_priority,
            webhook=webhook,
        )
        return self._do(lambda: self._server.store.submit(order).job_id)

    def status(self, job_id: str) -> dict[str, Any]:
        """Return what /status answers; raises JobUnknown."""
        store = self._server.store
        return self._do(lambda: store.status(store.get(job_id)))

    def wait(self, job_id: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return the status of the job once it is final; raises JobUnknown, or TimeoutError after `timeout_s`."""
        store = self._server.store

        async def end() -> dict[str, Any]:
            job = store.get(job_id)
            if not await until_final(store, job, timeout_s):
                raise TimeoutError(f"job {job_id} is still {job.state.value} after {timeout_s:g} s")
            return store.status(job)

        return self._await(end)

    def stream(self, job_id: str, timeout_s: float = 60.0) -> Iterator[Any]:
        """Yield the job's chunks as they arrive, from the first one, until it ends.

        Raises JobUnknown, or TimeoutError when nothing arrives for `timeout_s` seconds.
        """
        store = self._server.store
        seen = 0

        async def chunks() -> list[Any]:
            return await next_chunks(store, store.get(job_id), seen, timeout_s)

        while fresh := self._await(chunks):
            seen += len(fresh)
            yield from fresh

    def cancel(self, job_id: str) -> None:
        """Cancel a job as /cancel does; raises JobUnknown."""
        self._do(lambda: self._server.store.cancel(job_id))

    def deliver_again(self, job_id: str) -> None:
        """Hand a job out once more at the next take, as if its worker had been given up wrongly; raises JobUnknown."""
        self._do(lambda: self._server.store.deliver_again(job_id))

    def send_stop(self, worker_id: str, *job_ids: str) -> None:
        """Send stop signals as they are: queued, unknown and duplicate ids included. No job changes state."""
        self._do(lambda: self._server.store.stop(worker_id, *job_ids))

    def health(self) -> dict[str, Any]:
        """Return what /health answers."""
        return self._do(self._server.store.health)

    def _do(self, step: Callable[[], T]) -> T:
        async def run() -> T:
            return step()

        return self._await(run)

    def _await(self, make: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await make()

        return asyncio.run_coroutine_threadsafe(run(), self._loop.result()).result()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        try:
            await self._server.serve(*self._address, self._port.set_result)
        except (OSError, OverflowError) as error:  # the latter for a port that is no port
            self._port.set_exception(error)
