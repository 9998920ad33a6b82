from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.queue_peers import HttpClient, HttpWorker
    from worker.local.queue import LocalQueue


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as running:
        yield running


def take(queue: LocalQueue, worker: HttpWorker) -> dict[str, Any]:
    """Return the job that another thread is about to send."""
    queue.record.wait_for(lambda _: queue.health()["jobs"]["inQueue"])
    return worker.take().json()


def test_a_get_becomes_a_job_without_openai_input(
    queue: LocalQueue, client: HttpClient, worker: HttpWorker, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(client.get, "openai/v1/models?x=1")
    job = take(queue, worker)
    assert job["input"] == {"openai_route": "/v1/models", "openai_input": None}
    worker.done(job["id"], {"output": {"object": "list", "data": []}})
    assert asked.result().json() == {"object": "list", "data": []}


def test_a_post_becomes_a_job_with_its_body(
    queue: LocalQueue, client: HttpClient, worker: HttpWorker, pool: ThreadPoolExecutor
) -> None:
    body = {"model": "m", "messages": [], "stream": False}
    asked = pool.submit(client.post, "openai/v1/chat/completions", body)
    job = take(queue, worker)
    assert job["input"] == {"openai_route": "/v1/chat/completions", "openai_input": body}
    worker.done(job["id"], {"output": "x"})
    assert asked.result().status_code == 200


@pytest.mark.parametrize(
    ("chunks", "output", "text"),
    [
        (['{"id":  1}'], ['{"id":  1}'], '{"id":  1}'),
        ([{"id": 1}], [], '{"id": 1}'),
        (["first", "second"], [], "first"),
        ([], {"id": 2}, '{"id": 2}'),
        ([], '{"id":  3}', '{"id":  3}'),
    ],
)
def test_the_first_output_is_the_whole_answer(
    queue: LocalQueue,
    client: HttpClient,
    worker: HttpWorker,
    pool: ThreadPoolExecutor,
    *,
    chunks: list[Any],
    output: Any,
    text: str,
) -> None:
    asked = pool.submit(client.post, "openai/v1/embeddings", {"input": "x"})
    job_id = take(queue, worker)["id"]
    for chunk in chunks:
        worker.chunk(job_id, chunk)
    worker.done(job_id, {"output": output})
    answer = asked.result()
    assert (answer.status_code, answer.text) == (200, text)
    assert answer.headers["Content-Type"].startswith("application/json")


def test_a_stream_is_written_chunk_by_chunk_as_it_comes(
    queue: LocalQueue, client: HttpClient, worker: HttpWorker, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(client.post, "openai/v1/chat/completions", {"stream": True}, stream=True)
    job_id = take(queue, worker)["id"]
    frames = ["data: ü1\n\n", "data: 2\n\ndata: 3\n\n", "data: [DONE]\n\n"]
    worker.chunk(job_id, frames[0])
    with asked.result() as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        body = answer.iter_content(None)
        assert next(body).decode() == frames[0]
        # The second frame is sent only now: the first one arrived while the job was running.
        for frame in frames[1:]:
            worker.chunk(job_id, frame)
        worker.done(job_id, {"output": []})
        assert b"".join(body).decode() == "".join(frames[1:])


def test_objects_and_broken_text_in_a_stream_do_not_break_it(
    queue: LocalQueue, client: HttpClient, worker: HttpWorker, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(client.post, "openai/v1/completions", {"stream": True})
    job_id = take(queue, worker)["id"]
    worker.chunk(job_id, {"a": 1})
    worker.chunk(job_id, "\ud83d")
    worker.done(job_id, {})
    assert asked.result().text == '{"a": 1}?'


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_failed_job_is_a_500(
    queue: LocalQueue, client: HttpClient, worker: HttpWorker, pool: ThreadPoolExecutor, *, is_stream: bool
) -> None:
    asked = pool.submit(client.post, "openai/v1/completions", {"stream": is_stream})
    job_id = take(queue, worker)["id"]
    worker.done(job_id, {"error": "no such model"})
    answer = asked.result()
    assert answer.status_code == 500
    assert answer.json() == {"id": job_id, "status": "FAILED", "error": "no such model"}


def test_a_job_that_fails_after_its_first_chunk_ends_the_body(
    queue: LocalQueue, client: HttpClient, worker: HttpWorker, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(client.post, "openai/v1/completions", {"stream": True})
    job_id = take(queue, worker)["id"]
    worker.chunk(job_id, "data: 1\n\n")
    worker.done(job_id, {"error": "x"})
    answer = asked.result()
    assert (answer.status_code, answer.text) == (200, "data: 1\n\n")


def test_a_cancelled_job_is_a_500_too(
    queue: LocalQueue, client: HttpClient, worker: HttpWorker, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(client.post, "openai/v1/completions", {})
    job_id = take(queue, worker)["id"]
    queue.cancel(job_id)
    answer = asked.result()
    assert (answer.status_code, answer.json()["status"]) == (500, "CANCELLED")


def test_a_client_that_hangs_up_in_mid_stream_cancels_its_job(
    queue: LocalQueue,
    client: HttpClient,
    worker: HttpWorker,
    pool: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = pool.submit(client.post, "openai/v1/completions", {"stream": True}, stream=True)
    job_id = take(queue, worker)["id"]
    worker.chunk(job_id, "data: 1\n\n")
    asked.result().close()
    assert queue.wait(job_id)["status"] == "CANCELLED"
    assert worker.poll_stop().json() == {"jobsToStop": [job_id]}
    assert [line for line in caplog.records if line.levelname == "ERROR"] == []


def test_a_client_that_hangs_up_before_anything_came_cancels_its_job(queue: LocalQueue, client: HttpClient) -> None:
    with pytest.raises(OSError, match="timed out"):
        client.session.post(f"{client.root}/openai/v1/completions", json={"stream": True}, timeout=0.2)
    queue.record.wait_for(lambda _: queue.health()["jobs"]["inQueue"] == 0)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff"])
def test_a_body_that_is_no_json_is_refused_without_a_job(queue: LocalQueue, client: HttpClient, body: bytes) -> None:
    answer = client.post("openai/v1/completions", body)
    assert answer.status_code == 400
    assert "not valid JSON" in answer.json()["error"]
    assert queue.health()["jobs"]["inQueue"] == 0


def test_only_v1_is_routed(client: HttpClient) -> None:
    assert client.post("openai/api/chat", {}).status_code == 404
    assert client.post("openai/v1/", {}).status_code == 404
