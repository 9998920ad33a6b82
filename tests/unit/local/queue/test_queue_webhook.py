from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from worker.local.queue import Limits, LocalQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.queue_peers import HttpWorker, NewClient, NewWorker


class Receiver(ThreadingHTTPServer):
    """Keeps what is posted to it and answers with `statuses`, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.statuses: list[int] = []
        self.received: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class _Post(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        thread = threading.Thread(target=running.serve_forever, args=[0.05])
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def hook_queue() -> Iterator[LocalQueue]:
    with LocalQueue(limits=Limits(webhook_gap_s=0.05)) as running:
        yield running


def test_the_webhook_gets_the_final_status_once(
    hook_queue: LocalQueue, receiver: Receiver, new_client: NewClient, new_worker: NewWorker
) -> None:
    job_id = new_client(hook_queue).post("run", {"input": {}, "webhook": receiver.url}).json()["id"]
    worker = new_worker(hook_queue)
    assert worker.take().json()["webhook"] == receiver.url
    worker.done(job_id, {"output": "out"})
    hook_queue.record.wait_for(lambda _: receiver.received)
    worker.done(job_id, {"output": "again"})
    assert receiver.received == [hook_queue.status(job_id)]
    assert receiver.received[0]["output"] == "out"


@pytest.mark.parametrize(("statuses", "posts"), [([500, 404], 3), ([201, 200], 2), ([500, 500, 500, 500], 3)])
def test_the_webhook_is_tried_three_times_until_it_answers_200(
    hook_queue: LocalQueue, receiver: Receiver, *, statuses: list[int], posts: int
) -> None:
    receiver.statuses = statuses
    job_id = hook_queue.submit({}, webhook=receiver.url)
    hook_queue.cancel(job_id)
    hook_queue.record.wait_for(lambda _: len(receiver.received) >= posts)
    assert {document["status"] for document in receiver.received} == {"CANCELLED"}
    after = hook_queue.submit({}, webhook=receiver.url)
    receiver.statuses = []
    hook_queue.cancel(after)
    hook_queue.record.wait_for(lambda _: receiver.received[-1]["id"] == after)
    assert [document["id"] for document in receiver.received] == [job_id] * posts + [after]


def test_a_webhook_that_cannot_be_reached_does_no_harm(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit({}, webhook="http://127.0.0.1:9/closed")
    worker.take()
    worker.done(job_id, {"output": 1})
    assert queue.wait(job_id)["output"] == 1
    assert worker.take().status_code == 204
