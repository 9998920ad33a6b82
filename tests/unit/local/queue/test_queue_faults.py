from __future__ import annotations

import pytest

from worker.local.queue import NORMAL, NOTHING, RESET, Answer, Faults, Script


def test_a_script_plays_in_order_and_then_behaves() -> None:
    script = Script([RESET, NOTHING])
    script.add(Answer(500), times=2)
    assert [script.next() for _ in range(5)] == [RESET, NOTHING, Answer(500), Answer(500), NORMAL]


def test_always_fills_in_when_the_script_is_over_until_it_is_taken_back() -> None:
    script = Script([NORMAL])
    script.always(RESET)
    assert [script.next() for _ in range(3)] == [NORMAL, RESET, RESET]
    script.always(None)
    assert script.next() == NORMAL


def test_a_cleared_script_behaves() -> None:
    script = Script([RESET, NOTHING])
    script.always(RESET)
    assert script.left == 2
    script.clear()
    assert (script.left, script.next()) == (0, NORMAL)


@pytest.mark.parametrize(
    ("answer", "is_normal"),
    [(Answer(), True), (Answer(delay_s=1), True), (Answer(200), False), (RESET, False), (NOTHING, False)],
)
def test_an_answer_without_status_and_reset_is_the_normal_one(answer: Answer, *, is_normal: bool) -> None:
    assert answer.is_normal == is_normal


def test_faults_have_one_script_for_each_call() -> None:
    faults = Faults(
        take=[Answer(401)], stop=[Answer(402)], done=[Answer(403)], stream=[Answer(404)], ping=[Answer(405)], surplus=2
    )
    scripts = (faults.take, faults.stop, faults.done, faults.stream, faults.ping)
    assert [script.next().status for script in scripts] == [401, 402, 403, 404, 405]
    assert [script.next() for script in scripts] == [NORMAL] * 5
    assert faults.surplus == 2


def test_a_misspelt_call_is_an_error() -> None:
    with pytest.raises(TypeError, match="takes"):
        Faults(takes=[RESET])
