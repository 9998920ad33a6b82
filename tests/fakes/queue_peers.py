"""Both ends of the queue by hand: a clock that moves when told, a worker and a client one call at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from worker.local.queue import LocalQueue
    from worker.local.queue.job import Job

    Submit = Callable[..., Job]
    NewWorker = Callable[..., "HttpWorker"]
    NewClient = Callable[..., "HttpClient"]

TIMEOUT_S = 60


class Clock:
    """Time that moves only when told to; seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


class HttpWorker:
    """Makes the SDK's calls."""

    def __init__(self, queue: LocalQueue, worker_id: str = "w1") -> None:
        self.worker_id = worker_id
        self.root = f"{queue.api_url}/{queue.endpoint_id}"
        self.session = requests.Session()
        self.session.headers["Authorization"] = "local"

    def take(self, **query: Any) -> requests.Response:
        return self._get("job-take", query)

    def take_batch(self, size: Any) -> requests.Response:
        return self._get("job-take-batch", {"batch_size": size})

    def take_id(self) -> str:
        """Take one job that must be there and return its id."""
        return self.take().json()["id"]

    def poll_stop(self) -> requests.Response:
        return self._get("job-stop", {})

    def ping(self, **query: Any) -> requests.Response:
        return self._get("ping", query)

    def done(self, job_id: str, body: Any) -> requests.Response:
        return self._post("job-done", job_id, body)

    def chunk(self, job_id: str, output: Any) -> requests.Response:
        return self._post("job-stream", job_id, {"output": output})

    def _get(self, call: str, query: dict[str, Any]) -> requests.Response:
        return self.session.get(f"{self.root}/{call}/{self.worker_id}", params=query, timeout=TIMEOUT_S)

    def _post(self, call: str, job_id: str, body: Any) -> requests.Response:
        url = f"{self.root}/{call}/{self.worker_id}/{job_id}"
        if isinstance(body, bytes):
            return self.session.post(url, data=body, timeout=TIMEOUT_S)
        return self.session.post(url, json=body, timeout=TIMEOUT_S)


class HttpClient:
    """Calls the endpoint's public routes; paths are below the endpoint's."""

    def __init__(self, queue: LocalQueue) -> None:
        self.root = f"{queue.api_url}/{queue.endpoint_id}"
        self.session = requests.Session()

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.session.get(f"{self.root}/{path}", timeout=TIMEOUT_S, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        if isinstance(body, bytes):
            return self.session.post(f"{self.root}/{path}", data=body, timeout=TIMEOUT_S, **options)
        return self.session.post(f"{self.root}/{path}", json=body, timeout=TIMEOUT_S, **options)
