from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest

from worker.local.queue import Faults, Limits, LocalQueue, Refused, State
from worker.local.queue.worker_side import split_chunk

if TYPE_CHECKING:
    from tests.fakes.queue_peers import HttpWorker, NewWorker


def open_poll(queue: LocalQueue, path: str, *, close_at_once: bool = False) -> socket.socket:
    """Return a connection on which the request for `path` is being held, or was sent and not waited for."""
    port = int(queue.base_url.rpartition(":")[2])
    seen = len(queue.record.calls("take"))
    connection = socket.create_connection(("127.0.0.1", port))
    if close_at_once:
        # Corked, the request and the end of the connection leave together.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    connection.sendall(f"GET /v2/local/{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    if close_at_once:
        connection.close()
    queue.record.wait_for(lambda record: len(record.calls("take")) > seen)
    return connection


def test_a_single_take_answers_with_one_job(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id, other = queue.submit({"n": 1}), queue.submit({"n": 2})
    answer = worker.take(job_in_progress=0)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.json() == {"id": job_id, "input": {"n": 1}}
    assert queue.status(job_id)["workerId"] == "w1"
    assert queue.status(other)["status"] == "IN_QUEUE"


def test_an_empty_queue_is_held_and_then_answered_with_204(worker: HttpWorker) -> None:
    answer = worker.take()
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.elapsed.total_seconds() >= 0.19


def test_a_held_take_is_answered_when_a_job_comes(new_worker: NewWorker) -> None:
    with LocalQueue(limits=Limits(take_hold_s=60)) as queue:
        thread = threading.Timer(0.2, queue.submit, ["late"])
        thread.start()
        assert new_worker(queue).take().json()["input"] == "late"
        thread.join()


@pytest.mark.parametrize(("jobs", "size", "expected"), [(3, 2, 2), (1, 4, 1), (2, 1, 1)])
def test_a_batch_has_at_most_the_size_asked_for(
    queue: LocalQueue, worker: HttpWorker, *, jobs: int, size: int, expected: int
) -> None:
    ids = [queue.submit(number) for number in range(jobs)]
    batch = worker.take_batch(size).json()
    assert [job["id"] for job in batch] == ids[:expected]
    assert [job["input"] for job in batch] == list(range(expected))


def test_a_batch_of_nothing_is_204(worker: HttpWorker) -> None:
    assert worker.take_batch(4).status_code == 204


@pytest.mark.parametrize("size", ["0", "-1", "x", ""])
def test_a_bad_batch_size_is_refused(worker: HttpWorker, size: str) -> None:
    answer = worker.take_batch(size)
    assert answer.status_code == 400
    assert "batch_size" in answer.json()["error"]


def test_a_surplus_hands_out_more_than_asked_for(new_worker: NewWorker) -> None:
    with LocalQueue(faults=Faults(surplus=1)) as queue:
        for number in range(4):
            queue.submit(number)
        assert len(new_worker(queue).take_batch(2).json()) == 3


@pytest.mark.parametrize("abort", [False, True])
def test_no_job_goes_to_a_connection_that_is_closed(queue: LocalQueue, worker: HttpWorker, *, abort: bool) -> None:
    for _ in range(10):
        poll = open_poll(queue, "job-take/dead?x=1")
        if abort:
            poll.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        poll.close()
        job_id = queue.submit("for the living")
        assert worker.take_id() == job_id
        assert [move.worker_id for move in queue.record.history(job_id)] == [None, "w1"]


def test_no_job_goes_to_a_worker_that_hangs_up_right_after_asking(
    queue: LocalQueue, worker: HttpWorker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        job_id = queue.submit("for the living")
        open_poll(queue, "job-take/dead?x=1", close_at_once=True)
        assert worker.take_id() == job_id
        assert [move.worker_id for move in queue.record.history(job_id)] == [None, "w1"]
    assert [line for line in caplog.records if line.levelname == "ERROR"] == []


def test_a_stop_goes_to_its_worker_and_is_gone_then(
    queue: LocalQueue, worker: HttpWorker, new_worker: NewWorker
) -> None:
    job_id = queue.submit("in")
    worker.take()
    queue.cancel(job_id)
    assert new_worker(queue, "w2").poll_stop().status_code == 204
    assert worker.poll_stop().json() == {"jobsToStop": [job_id]}
    assert worker.poll_stop().status_code == 204


def test_a_held_stop_poll_is_answered_when_a_stop_comes(new_worker: NewWorker) -> None:
    with LocalQueue(limits=Limits(stop_hold_s=60)) as queue:
        thread = threading.Timer(0.2, queue.send_stop, ["w1", "a", "a", "nobody"])
        thread.start()
        assert new_worker(queue).poll_stop().json() == {"jobsToStop": ["a", "a", "nobody"]}
        thread.join()


def test_a_result_ends_the_job_whatever_the_content_type_says(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    worker.session.headers["Content-Type"] = "application/x-www-form-urlencoded"
    assert worker.done(job_id, '{"output": "a=b&c=ü"}'.encode()).status_code == 200
    assert queue.wait(job_id)["output"] == "a=b&c=ü"


def test_progress_is_not_the_end(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    worker.done(job_id, {"status": "IN_PROGRESS", "output": "half"})
    status = queue.status(job_id)
    assert (status["status"], status["output"]) == ("IN_PROGRESS", "half")
    assert [call.is_final for call in queue.record.dones(job_id)] == [False]


def test_a_repeated_result_is_taken_and_ignored(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    assert [worker.done(job_id, {"output": word}).status_code for word in ("one", "two")] == [200, 200]
    assert queue.status(job_id)["output"] == "one"
    assert [call.output for call in queue.record.dones(job_id)] == ["one", "two"]


def test_a_result_over_the_limit_is_refused_and_the_client_gets_nothing(new_worker: NewWorker) -> None:
    with LocalQueue(limits=Limits(done_bytes=100)) as queue:
        worker = new_worker(queue)
        fits, large = queue.submit("fits"), queue.submit("large")
        worker.take_batch(2)
        frame = len(b'{"output": ""}')
        assert worker.done(fits, {"output": "x" * (100 - frame)}).status_code == 200
        answer = worker.done(large, {"output": "x" * (101 - frame)})
        assert answer.status_code == 400
        assert "101 bytes, 100 are allowed" in answer.json()["error"]
        assert queue.status(fits)["output"]
        assert queue.status(large)["status"] == "COMPLETED"
        assert "output" not in queue.status(large)


def test_twenty_megabytes_are_the_default_limit(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    assert worker.done(job_id, {"output": "x" * 20_000_000}).status_code == 400
    assert queue.record.dones(job_id)[0].size_bytes > 20_000_000


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff"])
def test_a_result_that_is_no_object_is_refused_and_changes_nothing(
    queue: LocalQueue, worker: HttpWorker, body: bytes
) -> None:
    job_id = queue.submit("in")
    worker.take()
    answer = worker.done(job_id, body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert queue.status(job_id)["status"] == "IN_PROGRESS"


def test_results_and_chunks_of_unknown_jobs_are_404(worker: HttpWorker) -> None:
    assert worker.done("nobody", {"output": 1}).status_code == 404
    assert worker.chunk("nobody", "x").status_code == 404


def test_chunks_reach_the_stream_in_order_with_their_arrival_times(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    outputs: list[Any] = ["a", {"b": 1}, [2], None]
    for output in outputs:
        worker.chunk(job_id, output)
    worker.done(job_id, {"output": []})
    assert list(queue.stream(job_id)) == outputs
    calls = queue.record.chunks(job_id)
    assert [call.output for call in calls] == outputs
    assert [call.at_s for call in calls] == sorted(call.at_s for call in calls)


def test_a_chunk_without_output_is_refused(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take()
    answer = worker.session.post(f"{worker.root}/job-stream/w1/{job_id}", json={"text": "x"}, timeout=30)
    assert answer.status_code == 400


def test_a_large_text_chunk_arrives_in_pieces_and_a_large_object_not_at_all(new_worker: NewWorker) -> None:
    with LocalQueue(limits=Limits(chunk_bytes=40)) as queue:
        worker = new_worker(queue)
        job_id = queue.submit("in")
        worker.take()
        assert worker.chunk(job_id, "ä" * 50).status_code == 200
        answer = worker.chunk(job_id, {"text": "a" * 50})
        assert answer.status_code == 400
        assert "only text can be split" in answer.json()["error"]
        worker.done(job_id, {})
        pieces = list(queue.stream(job_id))
        assert "".join(pieces) == "ä" * 50
        assert len(pieces) > 1


@pytest.mark.parametrize("text", ["", "a", "a" * 40, "🎈" * 10, "a" * 41, "🎈" * 11, "ab🎈ü\ud83d" * 30])
def test_pieces_are_within_the_limit_and_whole_together(text: str) -> None:
    pieces = split_chunk(text, 40)
    assert "".join(pieces) == text
    assert all(len(piece.encode("utf-8", "surrogatepass")) <= 40 for piece in pieces)
    if len(text.encode("utf-8", "surrogatepass")) <= 40:
        assert pieces == [text]


def test_objects_are_measured_as_json() -> None:
    assert split_chunk(["a" * 36], 40) == [["a" * 36]]
    with pytest.raises(Refused, match="41 bytes"):
        split_chunk(["a" * 37], 40)


def test_a_ping_tells_which_jobs_are_in_progress_and_whether_all_is_well(queue: LocalQueue, worker: HttpWorker) -> None:
    assert worker.ping(job_id="a,b", runpod_version="1.12.0").status_code == 200
    assert queue.health()["workers"] == {"idle": 1, "running": 0, "unhealthy": 0}
    worker.ping(status="unhealthy", check="gpu", reason="no device")
    assert queue.health()["workers"] == {"idle": 0, "running": 0, "unhealthy": 1}
    first, last = queue.record.pings()
    assert (first.job_ids, last.job_ids) == (["a", "b"], [])
    assert queue.record.pings("b") == [first]
    assert last.query == {"status": "unhealthy", "check": "gpu", "reason": "no device"}


def test_jobs_of_a_worker_that_stops_pinging_go_to_another_one(new_worker: NewWorker) -> None:
    with LocalQueue(limits=Limits(take_hold_s=30, ping_interval_s=0.1, missed_pings=3)) as queue:
        job_id = queue.submit("in")
        assert new_worker(queue, "dead").take_id() == job_id
        heir = new_worker(queue, "heir")
        assert heir.take_id() == job_id
        heir.done(job_id, {"output": "inherited"})
        status = queue.wait(job_id)
        assert (status["output"], status["workerId"], status["retries"]) == ("inherited", "heir", 1)


def test_a_job_that_runs_too_long_is_stopped(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in", execution_timeout_s=0.1)
    worker.take()
    assert queue.wait(job_id)["status"] == "TIMED_OUT"
    assert worker.poll_stop().json() == {"jobsToStop": [job_id]}


def test_a_worker_with_a_wrong_key_sees_an_empty_queue_and_nothing_else(new_worker: NewWorker) -> None:
    with LocalQueue(api_key="secret", limits=Limits(take_hold_s=0.1)) as queue:
        assert queue.worker_env()["RUNPOD_AI_API_KEY"] == "secret"
        worker = new_worker(queue)
        job_id = queue.submit("in")
        assert worker.take().status_code == 204
        refused = [worker.poll_stop(), worker.ping(), worker.done(job_id, {}), worker.chunk(job_id, "x")]
        assert [answer.status_code for answer in refused] == [401] * 4
        assert [move.state for move in queue.record.history(job_id)] == [State.IN_QUEUE]
        worker.session.headers["Authorization"] = "secret"
        assert worker.take_id() == job_id


def test_calls_are_recorded_with_query_headers_and_body(queue: LocalQueue, worker: HttpWorker) -> None:
    job_id = queue.submit("in")
    worker.take(gpu="X", job_in_progress=0)
    worker.done(job_id, b"not json")
    take, done = queue.record.takes(job_id)[0], queue.record.dones(job_id)[0]
    assert (take.worker_id, take.query, take.answered) == ("w1", {"gpu": "X", "job_in_progress": "0"}, 200)
    assert take.headers["Authorization"] == "local"
    assert (done.body, done.size_bytes, done.answered) == ("not json", 8, 400)
