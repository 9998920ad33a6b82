from __future__ import annotations

from typing import Any

import pytest

from worker import sampling
from worker.errors import JobInvalid
from worker.fields import OPTIONS


def mapped(**params: Any) -> dict[str, Any]:
    return sampling.mapped({"prompt": "p", "sampling_params": params})


def refused(value: dict[str, Any]) -> JobInvalid:
    with pytest.raises(JobInvalid) as caught:
        sampling.mapped({"prompt": "p", **value})
    return caught.value


def test_parameters_of_the_same_meaning_become_options() -> None:
    assert mapped(temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=3, max_tokens=7) == {
        "prompt": "p",
        "options": {"temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": 3, "num_predict": 7},
    }
    assert set(sampling.SAME.values()) <= set(OPTIONS)


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_a_penalty_looks_at_the_whole_text_as_vllms_does(name: str) -> None:
    assert mapped(**{name: 1.1})["options"] == {sampling.SAME[name]: 1.1, "repeat_last_n": sampling.WHOLE_TEXT_TOKENS}
    given = {"prompt": "p", "options": {"repeat_last_n": 64}, "sampling_params": {name: 1.1}}
    assert sampling.mapped(given)["options"]["repeat_last_n"] == 64


@pytest.mark.parametrize(("stop", "sent"), [("x", ["x"]), (["x", "y"], ["x", "y"])])
def test_stop_is_a_list(stop: Any, sent: list[str]) -> None:
    assert mapped(stop=stop)["options"] == {"stop": sent}


@pytest.mark.parametrize("count", [0, 5])
def test_logprobs_is_a_switch_and_a_number(count: int) -> None:
    made = mapped(logprobs=count)
    assert (made["logprobs"], made["top_logprobs"]) == (True, count)
    assert "logprobs" not in mapped(logprobs=None)


def test_what_asks_for_nothing_is_left_out() -> None:
    assert mapped(**sampling.NEUTRAL) == mapped(**dict.fromkeys(sampling.NEUTRAL)) == {"prompt": "p", "options": {}}
    assert sampling.mapped({"prompt": "p", "sampling_params": None}) == {"prompt": "p"}


OTHER_VALUES = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    list: lambda _: [1],
    dict: lambda _: {"1": 2},
}


@pytest.mark.parametrize("name", sampling.NEUTRAL)
def test_what_has_no_counterpart_is_refused_by_name(name: str) -> None:
    neutral = sampling.NEUTRAL[name]
    error = refused({"sampling_params": {"temperature": 0, name: OTHER_VALUES[type(neutral)](neutral)}})
    assert f"'{name}' has no counterpart" in error.message
    assert error.hint


def test_true_is_not_one() -> None:
    assert "'n' has no counterpart" in refused({"sampling_params": {"n": True}}).message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"sampling_params": [1]}, "'sampling_params' must be an object, got a list"),
        (
            {"sampling_params": {"temprature": 1}},
            "unknown sampling parameter 'temprature' (did you mean 'temperature'?)",
        ),
        ({"sampling_params": {"zzz": 1}}, "unknown sampling parameter 'zzz'"),
        ({"sampling_params": {"guided_decoding": {"json": {}}}}, "'guided_decoding' has no counterpart"),
        ({"sampling_params": {"logprobs": True}}, "'logprobs' must be a number"),
        ({"sampling_params": {"logprobs": -1}}, "'logprobs' must be a number"),
        ({"sampling_params": {"seed": 1}, "options": {"seed": 2}}, "'seed' is given twice"),
        ({"sampling_params": {"max_tokens": 1}, "options": {"num_predict": 2}}, "'num_predict' is given twice"),
        ({"max_batch_size": 4}, "'max_batch_size' is not needed here"),
    ],
)
def test_what_is_wrong_is_named(value: dict[str, Any], words: str) -> None:
    assert words in refused(value).message


def test_options_that_say_something_else_stay() -> None:
    given = {"prompt": "p", "options": {"num_ctx": 9}, "sampling_params": {"seed": 1}}
    assert sampling.mapped(given)["options"] == {"num_ctx": 9, "seed": 1}
    assert given["options"] == {"num_ctx": 9}, "the job itself is not ours to change"
    # Said by the check of the field's type.
    assert sampling.mapped({"prompt": "p", "options": 3, "sampling_params": {}})["options"] == 3
