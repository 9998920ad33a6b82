import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import events
from worker.timeline import model, parse, render
from worker.timeline.coverage import GAP
from worker.timeline.model import Timeline
from worker.timeline.parse import Entry
from worker.timeline.render import Style
from worker.timeline.scale import Scale

MS = 1_000_000


def draw(content: str, style: Style | None = None) -> str:
    return render.render(model.timelines(parse.read(content)), style or Style())


def rows(text: str) -> dict[str, tuple[float, float]]:
    """Start and length of each row of a waterfall, as printed."""
    found = re.findall(r"^[ ▶>] ([ \w().-]{19}) *([\d.]+) +([\d.]+)  ", text, flags=re.MULTILINE)
    return {name.strip(): (float(start), float(took)) for name, start, took in found}


OWN = """\
Cold start: 5425 ms  container.started → job.chunk_posted

  span                   start     took  0             2000          4000     ms
▶ container                  0       80  ▋
▶ launch                    80       40  ▉
▶ config                   120       80  █▌
  server                   120      830  ██████▉
    process start          120      140  ▒▒
    store check            260       40   ▒▒
    GPU discovery          300      600    ▒▒▒▒▒
    first answer           900       50        ▒
▶ weights                  202     2398   █████████████████▊
  sdk                      203      800   ██████▎
▶ load                    2610     2140                    ████████████████▎
    schedule              2610       90                    ▒▒
    runner start          2700      400                     ▒▒▒▒
    metadata              3100      200                        ▒▒
    read                  3300       50                         ▒▒
    upload                3350     1000                          ▒▒▒▒▒▒▒▒
    context               4350      250                                 ▒▒▒
    probe                 4600      100                                   ▒
    other steps (3)                  50
▶ loop                    4760       40                                    ▋
▶ wait                    4800      500                                    ░░░░░
▶ open                    5300        5                                        ▎
▶ prefill                 5305      100                                        ▉
▶ post                    5405       20                                        █
  decode (goes on)        5405       20                                        █
  short gaps (2)                     20
  total                            5425  = spans 5405 + gaps 20

▶ Critical path: container 80 → launch 40 → config 80 → gap 2 → weights 2398 →
  gap 10 → load 2140 → gap 10 → loop 40 → wait 500 → open 5 → prefill 100 → post
  20 = 5425 ms
░ No job was there for 500 ms; the rest took 4925 ms.

job job-1: TTFT 105 ms, first chunk 125 ms, TPOT 10.0 ms, E2EL 1.10 s, in 40
  tokens at 500.0/s, out 101 tokens at 102.0/s

note: weights from volume; not from local (not here)
"""


def test_a_start_of_this_worker_in_eighty_columns(own_log: str) -> None:
    assert draw(own_log) == OWN


FOREIGN_END = """\
▶ Critical path: startup 2.205 → server 6.505 → gap 4.310 → wait 0.501 → open
  0.079 → schedule 1.003 → load 40.809 → prefill 5.238 = 60.650 s
░ No job was there for 0.501 s; the rest took 60.149 s.

job b1c7-u1: TTFT 47.13 s, TPOT 15.0 ms, E2EL 50.13 s, in 26 tokens at 5.0/s,
  out 201 tokens at 67.0/s

What to do
 1. [22.00 s] The weights came in at the speed of a single reader: have the file
    on local disk, or let several readers bring it into the page cache while the
    server starts.
    seen: 18.4 GiB in 22.00 s: 898 MB/s
"""


def test_another_images_start_says_what_to_do(log: Callable[[str], str]) -> None:
    text = draw(log("stock_docker.log"))
    assert FOREIGN_END in text
    gap = next(line for line in text.splitlines() if "  gap " in f" {line}")
    assert gap.endswith(" server → wait")


def test_the_same_log_gives_the_same_picture(own_log: str) -> None:
    assert draw(own_log) == draw("\n".join(reversed(own_log.splitlines())))


@pytest.mark.parametrize("width", [72, 80, 100, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_asked(own_log: str, log: Callable[[str], str], width: int, *, ascii_only: bool) -> None:
    for content in (own_log, log("stock_docker.log")):
        text = draw(content, Style(width=width, ascii_only=ascii_only))
        assert max(len(line) for line in text.splitlines()) <= width
        assert text.isascii() == ascii_only
    assert Style(width=1).bar_cells >= 10


def test_colour_changes_nothing_but_colour(own_log: str, log: Callable[[str], str]) -> None:
    for content in (own_log, log("stock_docker.log")):
        coloured = draw(content, Style(colour=True))
        assert "\x1b[" in coloured
        assert re.sub(r"\x1b\[\d+m", "", coloured) == draw(content)


def test_a_log_with_several_starts_shows_each(own_log: str) -> None:
    later = own_log.replace('"at_ns":1796', '"at_ns":1797')
    text = draw(own_log + later)
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("Cold")] == [
        "Cold start 1 of 2",
        "Cold start 2 of 2",
    ]


def test_nothing_from_a_log_steers_the_terminal() -> None:
    evil = "\x1b[2J\x07job\n\u202e"
    entries = [
        Entry(0, 0, "container.started", {}, own=True),
        Entry(1, 0, "job.accepted", {"job_id": evil}, own=True),
        Entry(2, 0, "job.failed", {"job_id": evil, "code": evil}, own=True),
        Entry(3, 0, "boot.failed", {"code": evil, "message": evil}, own=True),
    ]
    text = render.render(model.timelines(entries), Style())
    assert all(letter.isprintable() for letter in text.replace("\n", ""))
    assert "job  [2J job" in text


def test_a_long_wait_does_not_squeeze_the_rest(own_log: str) -> None:
    lines = own_log.splitlines()
    # A job that comes an hour later.
    late = [
        re.sub(r'"at_ns":(\d+)', lambda found: f'"at_ns":{int(found[1]) + 3600 * 10**9}', line) for line in lines[-5:]
    ]
    text = draw("\n".join([*lines[:-5], *late]))
    assert rows(text)["wait"] == (4.8, 3600.5)
    assert "░ No job was there for 3600.500 s; the rest took 4.925 s." in text
    assert "The longest wait is drawn 3600.01 s shorter than it was" in text
    load = next(line for line in text.splitlines() if line.startswith("▶ load"))
    assert load.count("█") > 10


def test_many_jobs_are_summed_up() -> None:
    told = [Entry(0, 0, "container.started", {}, own=True), Entry(1, 0, "boot.ready", {}, own=True)]
    for number in range(20):
        at_ns = (10 + number) * MS
        told += [
            Entry(at_ns, 0, "job.accepted", {"job_id": f"j{number}"}, own=True),
            Entry(at_ns + (number + 1) * MS, 0, "job.token_received", {"job_id": f"j{number}"}, own=True),
        ]
    text = render.render(model.timelines(told), Style())
    assert len(re.findall(r"^job j", text, flags=re.MULTILINE)) == 8
    assert "and 12 more; median of all 20: TTFT 11.0 ms" in text


def test_jobs_tell_their_trouble() -> None:
    told = [
        Entry(0, 0, "container.started", {}, own=True),
        Entry(1, 0, "job.accepted", {"job_id": "a"}, own=True),
        Entry(2, 0, "job.failed", {"job_id": "a", "code": "server_lost"}, own=True),
        Entry(3, 0, "job.accepted", {"job_id": "b"}, own=True),
        Entry(4, 0, "result.undelivered", {"job_id": "b"}, own=True),
    ]
    text = render.render(model.timelines(told), Style())
    assert "job a: failed server_lost\n" in text
    assert "job b: RESULT LOST\n" in text


def test_an_empty_start_can_be_drawn() -> None:
    text = render.render(model.timelines([Entry(5, 0, "boot.ready", {}, own=True)]), Style())
    assert text.startswith("Cold start: 0 ms  boot.ready → boot.ready\n")
    assert "Critical path: nothing = 0 ms" in text


some_names = [name for name in events.VOCABULARY if name != "server.logged"]
some_boots = st.lists(
    st.builds(
        lambda name, at_ns: Entry(at_ns, 0, name, {"job_id": "j"}, own=True),
        st.sampled_from(some_names),
        st.integers(0, 60 * 10**9),
    ),
    min_size=1,
    max_size=30,
).map(lambda entries: sorted(entries, key=lambda entry: entry.at_ns))


def path_sum(timeline: Timeline) -> tuple[int, int]:
    scale = Scale(timeline.start_ns, timeline.end_ns, cells=40)
    return sum(scale.ms(step.end_ns) - scale.ms(step.start_ns) for step in timeline.path), scale.ms(timeline.end_ns)


@given(some_boots)
def test_printed_numbers_add_up_whatever_happened(entries: list[Entry]) -> None:
    timelines = model.timelines(entries)
    for timeline in timelines:
        text = render.render([timeline], Style())
        assert max(len(line) for line in text.splitlines()) <= 80
        whole, spans, gaps = re.search(r"total +([\d.]+)  = spans ([\d.]+) \+ gaps ([\d.]+)", text).groups()  # type: ignore[union-attr]
        assert float(spans) + float(gaps) == pytest.approx(float(whole))
        steps, total = path_sum(timeline)
        assert steps == total
        printed = rows(text)
        for span in timeline.spans:
            name = next((name for name in printed if name.split(" (")[0] == span.name), None)
            assert name is not None or span.name == GAP
