from __future__ import annotations

from typing import Any

import pytest

from worker.local.engine.options import Options, RunnerOptions
from worker.local.engine.reply import ApiError


def merge(*layers: dict[str, Any], **more: Any) -> Options:
    return Options.merge(list(layers), 2048, **more)


def test_nothing_asked_for_is_ollamas_default() -> None:
    options = merge()
    assert options.runner == RunnerOptions(context=2048, batch=512, threads=0, shift=True)
    sampling = options.sampling
    assert (sampling["temperature"], sampling["top_k"], sampling["top_p"], sampling["seed"]) == (0.8, 40, 0.9, -1)
    assert (sampling["repeat_penalty"], sampling["repeat_last_n"], sampling["n_keep"]) == (1.0, 64, 4)
    assert sampling["stop"] == []


def test_later_layers_win_and_null_does_not() -> None:
    options = merge({"temperature": 0.1, "top_k": 3}, {"temperature": 0.2, "top_k": None})
    assert (options.sampling["temperature"], options.sampling["top_k"]) == (0.2, 3)


@pytest.mark.parametrize(("asked", "given"), [(-1, 20_480), (0, 0), (7, 7), (1_000_000, 20_480), (-2, 20_480)])
def test_an_answer_has_an_end(asked: int, given: int) -> None:
    assert merge({"num_predict": asked}).sampling["n_predict"] == given


@pytest.mark.parametrize(("asked", "trained", "given"), [(0, 0, 4), (1, 0, 4), (512, 8192, 512), (9000, 8192, 8192)])
def test_the_context_is_at_least_four_and_at_most_what_was_trained(asked: int, trained: int, given: int) -> None:
    assert merge({"num_ctx": asked}, train_context=trained).runner.context == given


def test_runner_options_stay_out_of_the_sampling() -> None:
    options = merge({"num_ctx": 100, "num_batch": 32, "num_thread": 2}, shift=False)
    assert options.runner == RunnerOptions(100, 32, 2, shift=False)
    assert not {"num_ctx", "num_batch", "num_thread", "num_predict", "num_keep"} & set(options.sampling)


def test_unknown_and_meaningless_options_are_dropped() -> None:
    assert merge({"bogus": 1, "num_gpu": 99, "use_mmap": False, "main_gpu": 1}) == merge()


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert merge({"top_k": 5.0}).sampling["top_k"] == 5


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"top_k": "many"}, 'option "top_k" must be of type integer'),
        ({"seed": True}, 'option "seed" must be of type integer'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
        ({"stop": "x"}, 'option "stop" must be of type array'),
        ({"stop": ["x", 1]}, 'option "stop" must be of an array of strings'),
    ],
)
def test_a_wrong_type_is_500_as_in_ollama(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        merge(option)
    assert (caught.value.status, caught.value.message) == (500, message)
