"""The models jobs may name: which name the server gets, who may have a model brought, and how often it is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.errors import ModelNotFound, ServerExited, ServerLost, WeightsUnavailable, WorkerError
from worker.local.process import ROOT
from worker.manifest import Manifest
from worker.names import ModelName
from worker.outset import outset
from worker.references import Wanted
from worker.shelf import Shelf
from worker.sources.chain import Placed

LIMIT_S = 30.0
MISSING = ModelNotFound("model is not here", "There are others")
LISTED = "qwen3:4b, s3://bucket/models/Tiny-Q8_0.gguf hf.co/org/repo:Q4_K_M"
# A job's model is being brought when its loop ends; nothing ever lets the download go on.
LEAVER = """
import asyncio, contextlib, threading
from worker.errors import ModelNotFound
from worker.outset import outset
from worker.shelf import Shelf
shelf = Shelf("m:latest", outset({}), pull=True, bring=lambda _: threading.Event().wait())
async def job():
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(shelf.bring("other", ModelNotFound("no")), 0.1)
asyncio.run(job())
print("over", flush=True)
"""


class Bringer:
    """Brings what it is asked for as soon as it may, and notes what that was."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.asked: list[Wanted] = []
        self.failure: WorkerError | None = None

    def __call__(self, wanted: Wanted) -> Placed:
        self.asked.append(wanted)
        assert self.may.wait(LIMIT_S)
        if self.failure is not None:
            raise self.failure
        return Placed(f"{wanted.name.short}-as-the-server-says", Path("store"), "hub", Manifest(wanted.name, ()))


@pytest.fixture
def bringer() -> Iterator[Bringer]:
    made = Bringer()
    made.may.set()
    yield made
    made.may.set()


def shelf(bringer: Bringer, resident: str = "smol:135m", *, pull: bool = True, **environ: str) -> Shelf:
    return Shelf(resident, outset(environ), pull=pull, bring=bringer)


@pytest.mark.parametrize(
    ("environ", "resident", "spellings"),
    [
        ({"OLLAMA_MODEL": "smol:135m"}, "smol:135m", ["smol:135m"]),
        ({"OLLAMA_MODEL": "smol"}, "smol:latest", ["smol", "smol:latest"]),
        (
            {"HF_MODEL": "https://huggingface.co/Org/Repo-GGUF"},
            "hf/org-repo-gguf:q4_k_m",
            ["https://huggingface.co/Org/Repo-GGUF", "Org/Repo-GGUF", "hf/org-repo-gguf:latest"],
        ),
        ({"OLLAMA_MODEL": "/models/Tiny-Q8_0.gguf"}, "local/tiny:q8_0", ["/models/Tiny-Q8_0.gguf", "local/tiny:q8_0"]),
    ],
)
def test_the_resident_model_is_known_under_every_name_it_was_asked_for_by(
    bringer: Bringer, environ: dict[str, str], resident: str, spellings: list[str]
) -> None:
    known = shelf(bringer, resident, **environ)
    assert [known.called(name) for name in [*spellings, "other:1b", ""]] == [
        *[resident] * len(spellings),
        "other:1b",
        "",
    ]
    assert known.resident == resident


async def test_a_model_that_was_brought_is_known_by_the_name_it_was_asked_for(bringer: Bringer) -> None:
    known = shelf(bringer)
    assert await known.bring("hf.co/org/repo:Q4_K_M", MISSING) == "hf.co/org/repo:Q4_K_M-as-the-server-says"
    assert known.called("hf.co/org/repo:Q4_K_M") == "hf.co/org/repo:Q4_K_M-as-the-server-says"
    assert (bringer.asked[0].repo, bringer.asked[0].quantization) == ("org/repo", "Q4_K_M")


async def test_without_leave_no_job_has_a_model_brought(bringer: Bringer) -> None:
    with pytest.raises(ModelNotFound) as caught:
        await shelf(bringer, pull=False).bring("other:1b", MISSING)
    assert caught.value is MISSING
    assert bringer.asked == []


@pytest.mark.parametrize("asked", ["/etc/shadow", "file:///etc/shadow", "../x", "~/x", "s3://other/m.gguf", "-", "a b"])
async def test_no_leave_makes_the_worker_read_paths_and_buckets_a_job_names(bringer: Bringer, asked: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        await shelf(bringer, WORKER_MODELS=f"smol:135m {LISTED}").bring(asked, MISSING)
    assert caught.value is MISSING
    assert bringer.asked == []


@pytest.mark.parametrize(
    ("asked", "place", "repo"),
    [
        ("qwen3:4b", "", ""),
        ("registry.ollama.ai/library/qwen3:4b", "", ""),
        ("s3://bucket/models/Tiny-Q8_0.gguf", "s3://bucket/models/Tiny-Q8_0.gguf", ""),
        # By its name it comes from the place in the list as well.
        ("s3/bucket-tiny:q8_0", "s3://bucket/models/Tiny-Q8_0.gguf", ""),
        ("hf.co/org/repo:Q4_K_M", "", "org/repo"),
    ],
)
async def test_models_of_the_list_need_no_leave(bringer: Bringer, asked: str, place: str, repo: str) -> None:
    known = shelf(bringer, pull=False, WORKER_MODELS=f"smol:135m {LISTED}")
    assert (await known.bring(asked, MISSING)).endswith("as-the-server-says")
    assert [(wanted.place, wanted.repo) for wanted in bringer.asked] == [(place, repo)]


async def test_ten_jobs_that_want_one_model_have_it_brought_once(bringer: Bringer) -> None:
    bringer.may.clear()
    known = shelf(bringer)
    jobs = [asyncio.ensure_future(known.bring("other:1b", MISSING)) for _ in range(10)]
    await asyncio.wait(jobs, timeout=0.1)
    assert not any(job.done() for job in jobs)
    bringer.may.set()
    assert set(await asyncio.gather(*jobs)) == {"other:1b-as-the-server-says"}
    assert [wanted.name for wanted in bringer.asked] == [ModelName.parse("other:1b")]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (WeightsUnavailable("no source has it: hub: HTTP 500", "Check the network"), ModelNotFound),
        # Nothing is wrong with the job: another worker can answer it.
        (ServerExited(9, ["killed"], "Look"), ServerLost),
    ],
)
async def test_a_failure_is_told_to_each_job_and_the_next_one_tries_again(
    bringer: Bringer, failure: WorkerError, kind: type[WorkerError]
) -> None:
    bringer.failure = failure
    known = shelf(bringer)
    told = await asyncio.gather(*(known.bring("other:1b", MISSING) for _ in range(3)), return_exceptions=True)
    assert [(type(error), str(error)) for error in told] == [(kind, failure.message)] * 3
    assert len(bringer.asked) == 1
    assert known.called("other:1b") == "other:1b"
    bringer.failure = None
    assert await known.bring("other:1b", MISSING) == "other:1b-as-the-server-says"


async def test_a_job_that_is_cancelled_leaves_the_download_to_the_others(bringer: Bringer) -> None:
    bringer.may.clear()
    known = shelf(bringer)
    first, second = (asyncio.ensure_future(known.bring("other:1b", MISSING)) for _ in range(2))
    await asyncio.wait([first, second], timeout=0.1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    bringer.may.set()
    assert await second == "other:1b-as-the-server-says"
    assert len(bringer.asked) == 1


def test_a_download_does_not_keep_a_worker_alive_that_has_ended() -> None:
    command = [sys.executable, "-c", LEAVER]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert (done.stdout, done.stderr) == ("over\n", "")
