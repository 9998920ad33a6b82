from worker.events import VOCABULARY
from worker.timeline import compare, model
from worker.timeline.compare import Difference
from worker.timeline.model import Timeline
from worker.timeline.parse import Entry

MS = 1_000_000


def timeline(*told: tuple[str, float]) -> Timeline:
    entries = [Entry(round(at_ms * MS), 0, name, {}, own=name in VOCABULARY) for name, at_ms in told]
    (made,) = model.timelines(entries)
    return made


BEFORE = timeline(
    ("load.started", 0),
    ("runner.spawned", 200),
    ("tensors.started", 300),
    ("runner.spawned", 500),
    ("tensors.started", 700),
    ("load.finished", 1000),
    ("sdk_import.started", 1000),
    ("sdk_import.finished", 1800),
    ("boot.ready", 2000),
)
AFTER = timeline(
    ("load.started", 0),
    ("fit.started", 10),
    ("tensors.started", 110),
    ("load.finished", 500),
    ("weights.requested", 500),
    ("weights.placed", 500.4),
    ("boot.ready", 501),
)


def test_spans_and_phases_are_compared_by_name_with_gaps_and_total_last() -> None:
    rows = {row.name: (row.before_ns, row.after_ns) for row in compare.differences(BEFORE, AFTER)}
    assert rows == {
        "load": (1000 * MS, 500 * MS),
        "load/schedule": (200 * MS, 10 * MS),
        "load/fit": (None, 100 * MS),
        "load/runner start": (300 * MS, None),
        "load/read": (500 * MS, 390 * MS),
        "weights": (None, 400_000),
        "sdk": (800 * MS, None),
        "gaps": (200 * MS, 600_000),
        "total": (2000 * MS, 501 * MS),
    }
    assert list(rows)[-2:] == ["gaps", "total"]


def test_what_only_the_second_has_stands_behind_what_it_follows_there() -> None:
    names = [row.name for row in compare.differences(BEFORE, AFTER)]
    assert names.index("load/fit") == names.index("load/schedule") + 1
    assert names.index("weights") == names.index("load/read") + 1
    assert compare.differences(timeline(("boot.ready", 0)), AFTER)[0].name == "load"


def test_what_only_the_second_begins_with_stands_first() -> None:
    early = timeline(("sdk_import.started", 0), ("sdk_import.finished", 1), ("load.started", 1), ("load.finished", 2))
    late = timeline(("load.started", 1), ("load.finished", 2))
    assert [row.name for row in compare.differences(late, early)] == ["sdk", "load", "gaps", "total"]
    assert [row.name for row in compare.differences(early, late)] == ["sdk", "load", "gaps", "total"]


def test_a_change_counts_a_missing_span_as_nothing() -> None:
    assert Difference("x", 5, None).change_ns == -5
    assert Difference("x", None, 5).change_ns == 5
    assert Difference("x", 3, 5).change_ns == 2


def test_a_timeline_compared_with_itself_shows_no_change() -> None:
    assert {row.change_ns for row in compare.differences(BEFORE, BEFORE)} == {0}


def test_the_table_shows_both_and_the_change() -> None:
    assert compare.render(BEFORE, AFTER).splitlines() == [
        "span (ms)                    before      after     change",
        "load                           1000        500       -500      -50%",
        "  schedule                      200         10       -190      -95%",
        "  fit                             -        100       +100",
        "  runner start                  300          -       -300",
        "  read                          500        390       -110      -22%",
        "weights                           -          0          0",
        "sdk                             800          -       -800",
        "gaps                            200          1       -199     -100%",
        "total                          2000        501      -1499      -75%",
    ]


def test_long_starts_are_compared_in_seconds_and_different_ends_are_told() -> None:
    long = timeline(("load.started", 0), ("load.finished", 20_000))
    text = compare.render(long, AFTER)
    assert "span (s)" in text
    assert "load                         20.000      0.500    -19.500      -98%" in text
    assert text.endswith("note: they end at different events: load.finished, boot.ready\n")


def test_the_table_fits_eighty_columns() -> None:
    assert all(len(line) <= 80 for line in compare.render(BEFORE, AFTER).splitlines())
