"""What a driver is made to compile: batches of every size, long contexts, all slots, and images where there are any."""

from __future__ import annotations

import base64
import shlex
import struct
import subprocess
import zlib
from collections.abc import Iterator

import pytest
import requests

from tests.conftest import FAKE, Marked
from worker.exercise import Coach, Exercise, picture, plan
from worker.local.process import free_port, wait_for

LIMIT_S = 60.0


def sizes(context: int, **more: int) -> list[int]:
    return [exercise.words for exercise in plan(context, **more)]


@pytest.mark.parametrize(("context", "batch"), [(4096, 512), (16384, 1024), (131072, 2048)])
def test_prompts_reach_every_power_of_two_more_than_one_batch_and_most_of_the_context(context: int, batch: int) -> None:
    found = sizes(context)
    assert {size.bit_length() for size in found} >= set(range(1, 10))
    assert any(batch < size < 2 * batch for size in found)
    assert 0.8 * context < max(found) < context
    assert found == sorted(found)


def test_a_small_context_gets_no_prompt_that_does_not_fit() -> None:
    assert max(sizes(64)) < 64
    assert plan(64)[-1].name == "near the context"
    assert sizes(0) == [0]


def test_slots_are_filled_together() -> None:
    assert all(exercise.streams == 1 for exercise in plan(4096))
    assert [exercise.streams for exercise in plan(4096, parallel=4)][-2:] == [2, 4]
    assert [exercise.streams for exercise in plan(4096, parallel=2) if exercise.streams > 1] == [2]


def test_an_image_is_shown_to_a_model_that_sees() -> None:
    assert not any(exercise.image for exercise in plan(4096))
    assert plan(4096, image=True)[-1].image


def test_the_picture_is_a_png() -> None:
    data = picture(8)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, pixels = 8, b""
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + content)
        pixels += zlib.decompress(content) if kind == b"IDAT" else b""
        at += 12 + length
    assert len(pixels) == 8 * (1 + 8 * 3)


class Fake:
    """A running fake server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def stats(self) -> dict:
        return requests.get(f"{self.url}/fake/stats", timeout=LIMIT_S).json()

    def turn(self, **knobs: object) -> None:
        requests.post(f"{self.url}/fake/script", json=knobs, timeout=LIMIT_S).raise_for_status()

    def answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/api/version", timeout=LIMIT_S).ok
        except requests.ConnectionError:
            return False


@pytest.fixture
def fake(marked: Marked) -> Iterator[Fake]:
    address = f"127.0.0.1:{free_port()}"
    environ = {**marked.environ, "OLLAMA_HOST": address, "FAKE_MODELS": "m,vectors=embedding"}
    process = subprocess.Popen(shlex.split(FAKE), env=environ, stderr=subprocess.DEVNULL)
    try:
        running = Fake(f"http://{address}")
        assert wait_for(running.answers, LIMIT_S)
        yield running
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def test_every_exercise_is_answered_and_none_is_like_the_one_before(fake: Fake) -> None:
    coach = Coach(fake.url, "m", LIMIT_S)
    seen = []
    for done in coach.run([Exercise("a", 3), Exercise("b", 3), Exercise("c", 5, streams=3)]):
        assert not done.problem
        assert done.prompt_tokens >= done.exercise.words * done.exercise.streams
        seen.append(fake.stats()["last"]["/api/generate"]["prompt"])
    assert len({prompt.split()[0] for prompt in seen}) == 3
    assert fake.stats()["requests"]["/api/generate"] == 5
    assert fake.stats()["last"]["/api/generate"]["options"].keys() == {"num_predict"}, "the runner would be changed"


def test_an_image_comes_along_in_base64(fake: Fake) -> None:
    (done,) = Coach(fake.url, "m", LIMIT_S).run([Exercise("an image", 2, image=True)])
    assert "image input is not supported" in done.problem, "the fake server's models are blind"
    (image,) = fake.stats()["last"]["/api/generate"]["images"]
    assert base64.b64decode(image).startswith(b"\x89PNG")


def test_a_model_for_embeddings_gets_its_words_embedded(fake: Fake) -> None:
    (done,) = Coach(fake.url, "vectors", LIMIT_S).run([Exercise("a", 3)])
    assert not done.problem
    assert fake.stats()["last"]["/api/embed"]["input"].endswith("the the the")


def test_a_refusal_is_told_and_the_next_prompt_is_asked(fake: Fake) -> None:
    fake.turn(refuse_status=500, refuse_error="out of memory", refuse_times=1)
    first, second = Coach(fake.url, "m", LIMIT_S).run([Exercise("a", 3), Exercise("b", 3)])
    assert first.problem == "out of memory"
    assert not second.problem


def test_a_server_that_went_away_is_noticed() -> None:
    coach = Coach(f"http://127.0.0.1:{free_port()}", "m", LIMIT_S)
    with pytest.raises(requests.ConnectionError):
        list(coach.run([Exercise("a", 1)]))
