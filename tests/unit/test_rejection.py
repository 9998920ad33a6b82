from __future__ import annotations

import pytest

from worker.errors import ModelNotFound, ServerRejected
from worker.rejection import asked_for, names_hint, rejection


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model 'qwen3:8' not found", "qwen3:8"),
        ('model "hf.co/a/b" not found, try pulling it first', "hf.co/a/b"),
        ("model 'zzz:latest' not found", "zzz"),
        ("model '' not found", ""),
        ("nothing of that kind was not found", ""),
    ],
)
def test_the_server_says_which_model_was_asked_for(text: str, name: str) -> None:
    error = rejection(404, text.encode())
    assert isinstance(error, ModelNotFound)
    assert asked_for(error) == name


@pytest.mark.parametrize(
    "words",
    [
        "image input is not supported - hint: ...",
        "this model does not support multimodal",
        "audio input is not supported",
    ],
)
def test_what_the_model_cannot_see_is_the_senders_fault(words: str) -> None:
    error = rejection(500, f'{{"error":"{words}"}}'.encode())
    assert isinstance(error, ServerRejected)
    assert error.status == 400
    assert "OLLAMA_SKIP_MMPROJ" in error.hint


@pytest.mark.parametrize("status", [500, 501])
def test_a_model_that_makes_no_embeddings_is_told_without_a_flag_nobody_can_give(status: int) -> None:
    words = "This server does not support embeddings. Start it with `--embeddings`"
    for body in (f'{{"error":"{words}"}}', f'{{"error":{{"code":501,"message":"{words}"}}}}'):
        error = rejection(status, body.encode())
        assert isinstance(error, ServerRejected)
        assert error.status == 400
        assert error.sentence().startswith("the model does not support embeddings")
        assert "embedding model" in error.hint
        assert "--embeddings" not in error.sentence()


def test_a_body_nested_without_end_is_words_too() -> None:
    assert rejection(500, b"[" * 60_000).message == "[" * 500


@pytest.mark.parametrize(
    ("asked", "names", "hint"),
    [
        ("qwen3:8", ["qwen3:8b", "llama3:1b"], "Did you mean qwen3:8b?"),
        ("qwen", ["qwen:latest", "a"], "Did you mean qwen:latest?"),
        ("zzz", ["a", "b"], "This worker has a, b"),
        ("zzz", list("abcdef"), "This worker has a, b, c, d, e, …"),
        ("zzz", [], "This worker has no model yet"),
    ],
)
def test_a_hint_names_what_there_is(asked: str, names: list[str], hint: str) -> None:
    assert names_hint(asked, names) == hint
