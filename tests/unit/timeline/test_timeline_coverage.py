import itertools

from hypothesis import given
from hypothesis import strategies as st

from worker.timeline import coverage
from worker.timeline.coverage import GAP
from worker.timeline.spans import State, Stretch

START, END = 0, 1000

stretches = st.lists(
    st.builds(
        lambda name, a, b, state: Stretch(name, min(a, b), max(a, b), state=state),
        st.sampled_from(["a", "b", "c", "d"]),
        st.integers(START, END),
        st.integers(START, END),
        st.sampled_from(State),
    ),
    max_size=12,
)


def names(steps: tuple[Stretch, ...]) -> list[str]:
    return [step.name for step in steps]


def test_gaps_lie_between_spans_and_are_named_by_them() -> None:
    spans = [Stretch("a", 100, 300), Stretch("b", 200, 400), Stretch("c", 600, 700)]
    found = coverage.gaps(spans, START, END)
    assert [(gap.start_ns, gap.end_ns, gap.meaning) for gap in found] == [
        (0, 100, "the start → a"),
        (400, 600, "b → c"),
        (700, 1000, "c → the end"),
    ]


def test_a_short_span_inside_a_long_one_opens_no_gap() -> None:
    assert coverage.gaps([Stretch("long", 0, 1000), Stretch("short", 10, 20)], START, END) == ()


def test_nothing_covered_is_one_gap() -> None:
    assert [gap.took_ns for gap in coverage.gaps([], START, END)] == [1000]


@given(stretches)
def test_gaps_are_exactly_the_moments_no_span_covers(spans: list[Stretch]) -> None:
    open_moments = {at for at in range(START, END) if not any(span.start_ns <= at < span.end_ns for span in spans)}
    found = coverage.gaps(spans, START, END)
    assert {at for gap in found for at in range(gap.start_ns, gap.end_ns)} == open_moments
    assert sum(gap.took_ns for gap in found) == len(open_moments)


def test_the_path_takes_the_branch_that_ended_last_at_each_join() -> None:
    boot = [
        Stretch("container", 0, 100),
        Stretch("server", 100, 300),
        Stretch("weights", 100, 500),
        Stretch("sdk", 100, 200),
        Stretch("load", 500, 900),
        Stretch("post", 900, 1000),
    ]
    assert names(coverage.critical_path(boot, START, END)) == ["container", "weights", "load", "post"]


def test_a_span_still_running_was_not_waited_for() -> None:
    boot = [Stretch("server", 0, 300), Stretch("sdk", 100, 950), Stretch("load", 300, 1000)]
    assert names(coverage.critical_path(boot, START, END)) == ["server", "load"]


def test_a_span_that_ends_after_the_window_set_nothing() -> None:
    job = [Stretch("decode", 400, 1000, state=State.CUT), Stretch("post", 400, 1000)]
    assert names(coverage.critical_path(job, START, END)) == [GAP, "post"]


def test_a_known_end_is_believed_before_a_missing_one() -> None:
    boot = [Stretch("lost", 0, 1000, state=State.OPEN), Stretch("load", 600, 1000), Stretch("server", 0, 600)]
    assert names(coverage.critical_path(boot, START, END)) == ["server", "load"]
    assert names(coverage.critical_path(boot[:1], START, END)) == ["lost"]


def test_what_nothing_explains_is_a_gap_on_the_path() -> None:
    steps = coverage.critical_path([Stretch("a", 100, 300), Stretch("b", 500, 900)], START, END)
    assert [(step.name, step.meaning or step.name) for step in steps] == [
        (GAP, "the start → a"),
        ("a", "a"),
        (GAP, "a → b"),
        ("b", "b"),
        (GAP, "b → the end"),
    ]


@given(stretches)
def test_the_path_fills_the_window_without_overlap(spans: list[Stretch]) -> None:
    steps = coverage.critical_path(spans, START, END)
    assert steps[0].start_ns == START
    assert steps[-1].end_ns == END
    for before, after in itertools.pairwise(steps):
        assert before.end_ns == after.start_ns
        assert not before.name == after.name == GAP
    assert all(step.name == GAP or step in spans for step in steps)


@given(stretches)
def test_the_order_of_the_spans_does_not_matter(spans: list[Stretch]) -> None:
    def shape(steps: tuple[Stretch, ...]) -> list[tuple[str, int, int]]:
        return [(step.name, step.start_ns, step.end_ns) for step in steps]

    turned = spans[::-1]
    assert shape(coverage.critical_path(spans, START, END)) == shape(coverage.critical_path(turned, START, END))
