"""A container that serves: without a network, without a writable disk, and to a clean end."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.image.conftest import MODEL, Run
from worker.local.process import wait_for

pytestmark = pytest.mark.timeout(300)
CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "options": {"num_predict": 8, "temperature": 0}}
_RUNSYNC = """
import sys, urllib.request
url = "http://127.0.0.1:8000/v2/local/runsync"
call = urllib.request.Request(url, sys.argv[1].encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(call).read().decode())
"""
_STATES = (
    "import glob; print(*[open(path).read().rsplit(')', 1)[1].split()[0] for path in glob.glob('/proc/[0-9]*/stat')])"
)


def test_a_container_without_a_network_answers_a_job(run: Run) -> None:
    with run() as container:
        status = container.queue().wait(container.queue().submit(CHAT))

        assert status["status"] == "COMPLETED", container.tail()
        assert status["output"][0]["model"] == MODEL
        assert status["output"][0]["message"]["content"]
        assert container.wait_event("server.answered")["version"]


def test_a_container_told_to_serve_locally_answers_without_an_account(run: Run) -> None:
    with run(arguments=("local",)) as container:
        container.wait_event("loop.started")

        status = json.loads(container.exec("python3", "-c", _RUNSYNC, json.dumps({"input": CHAT})))

        assert status["status"] == "COMPLETED", container.tail()
        assert status["output"][0]["message"]["content"]
        container.signal(signal.SIGTERM)
        assert container.end() == 0, container.tail()


def test_a_read_only_container_with_tmpfs_answers_a_job(run: Run) -> None:
    with run("--read-only", "--tmpfs=/tmp", "--tmpfs=/root") as container:
        status = container.queue().wait(container.queue().submit(CHAT))

        assert status["status"] == "COMPLETED", container.tail()


def test_a_volume_that_cannot_be_written_to_is_said_and_served_without(run: Run, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    with run(f"--volume={volume}:/runpod-volume:ro") as container:
        status = container.queue().wait(container.queue().submit(CHAT))

        assert status["status"] == "COMPLETED", container.tail()
        assert [line for line in container.lines if re.match(r"start.sh: /runpod-volume\S* is not writable", line)]


def test_the_first_process_reaps_what_others_leave_behind(run: Run) -> None:
    with run() as container:
        container.wait_event("boot.ready")
        assert container.exec("cat", "/proc/1/comm").strip() == "tini"

        container.exec("sh", "-c", "sleep 0.1 & exit 0")

        assert wait_for(lambda: "Z" not in container.exec("python3", "-c", _STATES).split(), 20.0)


def test_an_idle_worker_stops_within_two_seconds(run: Run) -> None:
    with run() as container:
        container.queue()
        container.wait_event("loop.started")

        container.signal(signal.SIGTERM)

        assert container.end() == 0, container.tail()
        told, ended = container.wait_event("worker.stopping"), container.wait_event("worker.stopped")
        assert (ended["at_ns"] - told["at_ns"]) / 1e9 < 2.0


def test_a_worker_told_to_stop_finishes_its_job_first(run: Run) -> None:
    with run() as container:
        queue = container.queue()
        job_id = queue.submit({"prompt": "Count.", "stream": True, "options": {"num_predict": 150, "temperature": 0}})
        chunks = queue.stream(job_id)
        next(chunks)

        container.signal(signal.SIGTERM)

        assert queue.wait(job_id)["status"] == "COMPLETED"
        assert container.end() == 0
        names = [record["event"] for record in container.records]
        assert names.index("worker.stopping") < names.index("job.finished")
