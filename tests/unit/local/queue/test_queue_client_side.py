from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from worker.local.queue import Limits, LocalQueue

if TYPE_CHECKING:
    from tests.fakes.queue_peers import HttpClient, HttpWorker, NewClient, NewWorker


def test_run_answers_at_once_and_status_follows_the_job(
    queue: LocalQueue, client: HttpClient, worker: HttpWorker
) -> None:
    answer = client.post("run", {"input": {"n": 1}})
    job_id = answer.json()["id"]
    assert (answer.status_code, answer.json()) == (200, {"id": job_id, "status": "IN_QUEUE"})
    assert client.get(f"status/{job_id}").json() == {"id": job_id, "status": "IN_QUEUE"}
    assert worker.take().json() == {"id": job_id, "input": {"n": 1}}
    assert client.get(f"status/{job_id}").json()["status"] == "IN_PROGRESS"
    worker.done(job_id, {"output": "out"})
    status = client.get(f"status/{job_id}").json()
    assert status == queue.status(job_id)
    assert status["status"] == "COMPLETED"
    assert status.keys() == {"id", "status", "output", "delayTime", "executionTime", "workerId"}


def test_runsync_answers_with_the_final_status(queue: LocalQueue, client: HttpClient, worker: HttpWorker) -> None:
    def serve() -> None:
        queue.record.wait_for(lambda _: queue.health()["jobs"]["inQueue"])
        worker.done(worker.take_id(), {"error": "no luck"})

    thread = threading.Thread(target=serve)
    thread.start()
    answer = client.post("runsync", {"input": {}}).json()
    thread.join()
    assert (answer["status"], answer["error"]) == ("FAILED", "no luck")
    assert answer["id"].startswith("sync-")


def test_runsync_answers_with_the_present_status_when_the_wait_is_over(client: HttpClient) -> None:
    answer = client.post("runsync?wait=1000", {"input": {}})
    assert answer.json()["status"] == "IN_QUEUE"
    assert answer.elapsed.total_seconds() >= 1
    assert client.get(f"status/{answer.json()['id']}").status_code == 200


@pytest.mark.parametrize("wait", ["999", "300001", "soon"])
def test_a_bad_wait_is_refused_without_a_job(queue: LocalQueue, client: HttpClient, wait: str) -> None:
    answer = client.post(f"runsync?wait={wait}", {"input": {}})
    assert answer.status_code == 400
    assert '"wait"' in answer.json()["error"]
    assert queue.health()["jobs"]["inQueue"] == 0


@pytest.mark.parametrize("path", ["run", "runsync"])
@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"{'input': 1}", "not valid JSON"),
        ([1], "must be a JSON object"),
        ({"prompt": "x"}, '"input" is missing'),
        ({"input": {}, "policy": {"ttl": 1}}, '"policy.ttl"'),
    ],
)
def test_a_bad_body_is_refused_with_a_sentence(client: HttpClient, path: str, body: object, complaint: str) -> None:
    answer = client.post(path, body)
    assert answer.status_code == 400
    assert complaint in answer.json()["error"]


def test_run_and_runsync_have_their_own_size_limits(new_client: NewClient) -> None:
    with LocalQueue(limits=Limits(run_bytes=100, runsync_bytes=200, sync_wait_s=0)) as queue:
        client = new_client(queue)
        body = {"input": "x" * 100}
        assert client.post("runsync", body).status_code == 200
        answer = client.post("run", body)
        assert answer.status_code == 400
        assert "100 are allowed" in answer.json()["error"]
        assert client.post("runsync", {"input": "x" * 200}).status_code == 400


def test_ten_megabytes_are_the_default_limit_of_run(client: HttpClient) -> None:
    assert client.post("run", {"input": "x" * 9_900_000}).status_code == 200
    assert client.post("run", {"input": "x" * 10_000_000}).status_code == 400


def test_the_policy_of_a_job_is_followed(queue: LocalQueue, client: HttpClient, worker: HttpWorker) -> None:
    low = client.post("run", {"input": 1, "policy": {"lowPriority": True}}).json()["id"]
    normal = client.post("run", {"input": 2}).json()["id"]
    assert [worker.take_id(), worker.take_id()] == [normal, low]
    assert queue.health()["jobs"]["inProgress"] == 2


def test_each_poll_of_the_stream_returns_what_is_new(client: HttpClient, worker: HttpWorker) -> None:
    job_id = client.post("run", {"input": {}}).json()["id"]
    path = f"stream/{job_id}"
    assert client.get(path).json() == {"id": job_id, "status": "IN_QUEUE", "stream": []}
    worker.take()
    worker.chunk(job_id, "a")
    worker.chunk(job_id, {"b": 1})
    assert client.get(path).json()["stream"] == [{"output": "a"}, {"output": {"b": 1}}]
    worker.chunk(job_id, "c")
    worker.done(job_id, {"output": []})
    assert client.get(path).json() == {"id": job_id, "status": "COMPLETED", "stream": [{"output": "c"}]}
    assert client.get(path).json()["stream"] == []


def test_cancel_stops_the_worker(client: HttpClient, worker: HttpWorker) -> None:
    job_id = client.post("run", {"input": {}}).json()["id"]
    worker.take()
    assert client.post(f"cancel/{job_id}").json() == {"id": job_id, "status": "CANCELLED"}
    assert worker.poll_stop().json() == {"jobsToStop": [job_id]}
    assert client.get(f"status/{job_id}").json()["status"] == "CANCELLED"


def test_retry_queues_a_failed_job_and_refuses_others(client: HttpClient, worker: HttpWorker) -> None:
    job_id = client.post("run", {"input": "again"}).json()["id"]
    assert client.post(f"retry/{job_id}").status_code == 400
    worker.take()
    worker.done(job_id, {"error": "x"})
    assert client.post(f"retry/{job_id}").json() == {"id": job_id, "status": "IN_QUEUE"}
    assert worker.take().json() == {"id": job_id, "input": "again"}


def test_purge_removes_what_waits(client: HttpClient, worker: HttpWorker) -> None:
    ids = [client.post("run", {"input": number}).json()["id"] for number in range(3)]
    worker.take()
    assert client.post("purge-queue").json() == {"removed": 2, "status": "completed"}
    assert [client.get(f"status/{job_id}").status_code for job_id in ids] == [200, 404, 404]


def test_health_and_requests_describe_the_endpoint(client: HttpClient, worker: HttpWorker) -> None:
    ids = [client.post("run", {"input": number}).json()["id"] for number in range(2)]
    worker.take()
    assert client.get("health").json() == {
        "jobs": {"completed": 0, "failed": 0, "inProgress": 1, "inQueue": 1, "retried": 0},
        "workers": {"idle": 0, "running": 1, "unhealthy": 0},
    }
    listed = client.get("requests").json()["requests"]
    assert [(job["id"], job["status"]) for job in listed] == list(zip(ids, ["IN_PROGRESS", "IN_QUEUE"], strict=True))


@pytest.mark.parametrize("path", ["status/nobody", "stream/nobody"])
def test_unknown_jobs_are_404(client: HttpClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "nobody" in answer.json()["error"]
    assert client.post("cancel/nobody").status_code == 404
    assert client.post("retry/nobody").status_code == 404


@pytest.mark.parametrize(("path", "status"), [("nothing", 404), ("../run", 404), ("status/x", 405)])
def test_unknown_routes_are_answered_in_json(client: HttpClient, path: str, status: int) -> None:
    answer = client.post(path, {"input": {}})
    assert answer.status_code == status
    assert answer.json()["error"].startswith("POST /v2/")


@pytest.mark.parametrize("call", ["run", "runsync", "openai/v1/chat/completions", "status/x"])
def test_another_endpoint_is_told_the_id_of_the_one_that_is_here(client: HttpClient, call: str) -> None:
    for endpoint in ("ENDPOINT_ID", "locally"):
        answer = client.post(f"../{endpoint}/{call}", {"input": {}})
        assert answer.status_code == 404
        assert answer.json() == {
            "error": f"there is no endpoint '{endpoint}' here, its id is 'local': /v2/local/{call}"
        }


def test_a_result_disappears_after_its_retention(new_client: NewClient, new_worker: NewWorker) -> None:
    with LocalQueue(limits=Limits(run_retention_s=0.2, take_hold_s=5)) as queue:
        client, worker = new_client(queue), new_worker(queue)
        job_id = client.post("run", {"input": {}}).json()["id"]
        worker.take()
        worker.done(job_id, {"output": 1})
        queue.record.wait_for(lambda _: client.get(f"status/{job_id}").status_code == 404)


def test_a_status_request_can_shorten_the_life_of_a_job(queue: LocalQueue, client: HttpClient) -> None:
    job_id = client.post("run", {"input": {}}).json()["id"]
    assert client.get(f"status/{job_id}?ttl=-5").status_code == 400
    assert client.get(f"status/{job_id}?ttl=1").status_code == 200
    queue.record.wait_for(lambda _: client.get(f"status/{job_id}").status_code == 404)


@pytest.mark.parametrize(
    ("header", "status"),
    [("secret", 200), ("Bearer secret", 200), ("Bearer wrong", 401), ("", 401), ("Bearer", 401)],
)
def test_the_key_is_needed_where_one_is_set(new_client: NewClient, header: str, status: int) -> None:
    with LocalQueue(api_key="secret") as queue:
        client = new_client(queue)
        answers = [
            client.get("health", headers={"Authorization": header}),
            client.post("run", {"input": {}}, headers={"Authorization": header}),
            client.post("openai/v1/chat/completions", b"{", headers={"Authorization": header}),
            client.get("../other/health", headers={"Authorization": header}),
        ]
        assert [answer.status_code for answer in answers] == (
            [status, status, 400, 404] if status == 200 else [status] * 4
        )


@pytest.mark.parametrize(("key", "status"), [("secret", 200), ("Secret", 401), ("Bearer secret", 401)])
def test_the_key_may_be_where_the_other_apis_of_the_port_take_it(new_client: NewClient, key: str, status: int) -> None:
    with LocalQueue(api_key="secret") as queue:
        assert new_client(queue).get("health", headers={"X-Api-Key": key}).status_code == status
