import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.timeline import envelope
from worker.timeline.envelope import Line
from worker.timeline.stamps import SECOND_NS, Stamp

NOON_NS = 1_796_040_000 * SECOND_NS
NOON = Stamp(NOON_NS + 500_000_000, zone_s=0)
PREFIX = "2026-11-30T12:00:00.500Z "
TEXT = "load_tensors: offloading output layer to GPU"


@pytest.mark.parametrize(
    "wrapped",
    [
        PREFIX + TEXT,
        f"2026-11-30T12:00:00.500000000Z stderr F {TEXT}",
        f"2026-11-30T12:00:00.500Z [w1x2y3z4] [info] {TEXT}",
        f"engine-1  | {PREFIX}{TEXT}",
        f"\x1b[36m{PREFIX}\x1b[0m{TEXT}\r",
        f'{{"timestamp": "2026-11-30T12:00:00.500Z", "level": "info", "message": "{TEXT}"}}',
        f'{{"log": "{TEXT}\\n", "stream": "stderr", "time": "2026-11-30T12:00:00.5Z"}}',
        f'data: {{"source": "container", "line": "{TEXT}", "ts": "2026-11-30T12:00:00.500Z"}}',
        f'{{"ts": "2026-11-30T12:00:00Z", "line": "{PREFIX}{TEXT}"}}',
    ],
)
def test_wrapping_is_taken_off_a_line(wrapped: str) -> None:
    assert envelope.lines(wrapped) == [Line(NOON, TEXT)]


def test_journald_names_no_year_so_its_time_is_left_to_the_program() -> None:
    assert envelope.lines(f"Jun 05 12:36:11 host ollama[25973]: {TEXT}") == [Line(None, TEXT)]


def test_an_access_line_keeps_its_tag() -> None:
    text = '[GIN] 2026/11/30 - 12:00:00 | 200 | 1.2s | 127.0.0.1 | POST "/api/chat"'
    assert envelope.lines(text) == [Line(None, text)]


@pytest.mark.parametrize(
    "wrapped",
    [
        '{"requestId": "job-1", "message": "Started.", "level": "INFO"}',
        "INFO   | job-1 | Started.",
        PREFIX + '{"requestId": "job-1", "message": "Started.", "level": "INFO"}',
    ],
)
def test_both_forms_of_the_sdks_lines_become_records(wrapped: str) -> None:
    (line,) = envelope.lines(wrapped)
    assert line.text == ""
    assert (line.record["requestId"], line.record["message"]) == ("job-1", "Started.")


def test_an_sdk_line_without_a_job_has_no_request() -> None:
    (line,) = envelope.lines("DEBUG  | rp_job | Received 204 status, no jobs.")
    assert line.record["message"].endswith("no jobs.")


def test_an_event_is_found_however_deep_it_is_wrapped() -> None:
    event = {"at_ns": NOON_NS, "seq": 3, "event": "boot.ready", "model": "m"}
    exported = {"ts": NOON_NS, "message": json.dumps({"log": PREFIX + json.dumps(event)})}
    assert [line.record for line in envelope.lines(json.dumps(exported))] == [event]


def test_a_record_nested_beyond_reason_is_given_up() -> None:
    text = TEXT
    for _ in range(9):
        text = json.dumps({"message": text})
    assert [line.text for line in envelope.lines(text)] == [""]
    assert envelope.lines("[" * 5000) == [Line(None, "[" * 5000)]


@pytest.mark.parametrize("key", ["logs", "data", "events"])
def test_a_json_export_is_a_list_of_records_wherever_it_lies(key: str) -> None:
    records = [{"time": NOON_NS // 10**6, "message": "one"}, PREFIX + "two", 3, None]
    for whole in (records, {key: records}):
        assert [line.text for line in envelope.lines(json.dumps(whole, indent=1))] == ["one", "two"]


def test_a_csv_export_is_read_by_its_header() -> None:
    stream = io.StringIO(newline="")
    rows = [["Level", "Timestamp", "Message"], ["info", "2026-11-30 12:00:00.500", 'say "hi", twice'], ["cut off"]]
    csv.writer(stream).writerows(rows)
    assert envelope.lines("\n" + stream.getvalue()) == [Line(Stamp(NOON.at_ns), 'say "hi", twice')]


def test_a_table_csv_cannot_read_is_taken_line_by_line() -> None:
    huge = '"' + "x" * (csv.field_size_limit() + 1) + '"'
    assert len(envelope.lines(f"timestamp,message\n1,{huge}\n")) == 2


def test_a_log_with_the_newest_line_first_is_turned_round() -> None:
    oldest_first = [f"2026-11-30T12:00:0{second}.0Z line {second}" for second in range(4)]
    turned = envelope.lines("\n".join(reversed(oldest_first)))
    assert [line.text for line in turned] == ["line 0", "line 1", "line 2", "line 3"]
    assert envelope.lines("\n".join(oldest_first)) == turned


def test_one_late_line_does_not_turn_a_log_round() -> None:
    texts = [f"2026-11-30T12:00:0{second}.0Z {second}" for second in (0, 1, 3, 2, 4)]
    assert [line.text for line in envelope.lines("\n".join(texts))] == ["0", "1", "3", "2", "4"]


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(content: str) -> None:
    for line in envelope.lines(content):
        assert isinstance(line.text, str)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["logs", "line", "ts", "event", "at_ns", "requestId", "message"]), inner)
        ),
        max_leaves=20,
    )
)
def test_no_json_breaks_the_reader(whole: object) -> None:
    for line in envelope.lines(json.dumps(whole)):
        assert isinstance(line.text, str)
