"""The prompts that make a driver compile what a model can need: batches of every size, decode, long contexts, slots."""

from __future__ import annotations

import base64
import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from worker.footprint import batch_for
from worker.residency import NO_TEXT

# Kernels are chosen by how many tokens go through them at once; the limits between them are near powers of two.
_BATCHES = (1, 2, 4, 8, 12, 24, 48, 96, 192, 384)
_SHARE_OF_CONTEXT = 0.9
_DECODED = 16
_IMAGE_SIDE = 64


@dataclass(frozen=True)
class Exercise:
    """One prompt of some `words`, asked `streams` times at once; a word is a token in most vocabularies."""

    name: str
    words: int
    streams: int = 1
    image: bool = False


@dataclass(frozen=True)
class Done:
    """What became of an exercise: tokens of its prompt as the server counts, seconds, and its refusal if it was one."""

    exercise: Exercise
    prompt_tokens: int
    took_s: float
    problem: str = ""


def plan(context: int, *, parallel: int = 1, image: bool = False) -> list[Exercise]:
    """Return the exercises for a model with `context` tokens a slot and `parallel` slots, short ones first."""
    batch = batch_for(context)
    longest = int(context * _SHARE_OF_CONTEXT)
    sizes = [*_BATCHES, batch + batch // 2, longest]
    found = [
        Exercise("near the context" if size == longest else f"{size} words", size) for size in sizes if size <= longest
    ]
    if parallel > 1:
        found += [Exercise(f"{streams} at once", 24, streams=streams) for streams in sorted({2, parallel})]
    return [*found, *([Exercise("an image", 8, image=True)] if image else [])]


class Coach:
    """Puts exercises to one model of one server, one after the other."""

    def __init__(self, url: str, model: str, limit_s: float) -> None:
        """Ask `model` at `url`; a single prompt may take `limit_s` seconds."""
        self._url = url
        self._model = model
        self._limit_s = limit_s
        self._asked = 0

    def run(self, exercises: list[Exercise]) -> Iterator[Done]:
        """Yield what became of each; raise requests.RequestException when the server went away."""
        for exercise in exercises:
            began_s = time.monotonic()
            with ThreadPoolExecutor(exercise.streams) as pool:
                bodies = [self._body(exercise) for _ in range(exercise.streams)]
                answers = list(pool.map(self._answer, bodies))
            tokens = sum(int(answer.get("prompt_eval_count") or 0) for answer in answers)
            problem = next((str(answer["error"]) for answer in answers if answer.get("error")), "")
            yield Done(exercise, tokens, time.monotonic() - began_s, problem)

    def _body(self, exercise: Exercise) -> dict[str, Any]:
        # What a prompt has in common with the one before would not be computed again.
        self._asked += 1
        body: dict[str, Any] = {"prompt": f"{self._asked}" + " the" * exercise.words, "raw": not exercise.image}
        if exercise.image:
            body["images"] = [base64.b64encode(picture(_IMAGE_SIDE)).decode()]
        # No other option: one that concerns the runner would have it loaded anew.
        return {"model": self._model, **body, "stream": False, "options": {"num_predict": _DECODED}}

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        found = self._post("/api/generate", body)
        if NO_TEXT in str(found.get("error")):
            return self._post("/api/embed", {"model": self._model, "input": body["prompt"]})
        return found

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = requests.post(f"{self._url}{path}", json=body, timeout=self._limit_s)
        try:
            answer = reply.json()
        except ValueError:
            answer = {}
        if reply.ok and isinstance(answer, dict):
            return answer
        return {"error": answer.get("error") if isinstance(answer, dict) and answer else f"HTTP {reply.status_code}"}


def picture(side: int) -> bytes:
    """Return a PNG of `side` x `side` pixels, a gradient."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    rows = b"".join(b"\0" + bytes((x * y + x) % 256 for x in range(side * 3)) for y in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
