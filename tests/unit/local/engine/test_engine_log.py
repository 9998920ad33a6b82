from __future__ import annotations

import re

import pytest

from worker.local.engine import log

LINE = re.compile(r'time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\S+ level=(\w+) source=(\S+):\d+ msg="([^"]*)"(.*)\n')


def test_a_line_has_ollamas_form_and_names_its_caller(capsys: pytest.CaptureFixture[str]) -> None:
    log.info("loaded runners", count=2)
    line = LINE.fullmatch(capsys.readouterr().err)
    assert line is not None
    assert line.groups() == ("INFO", "test_engine_log.py", "loaded runners", " count=2")


def test_a_warning_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    log.warn("aborting load")
    assert " level=WARN " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "shown"), [("cpu", "cpu"), ("", '""'), ("23.5 GiB", '"23.5 GiB"'), ('a "b"', r'"a \"b\""'), (512, "512")]
)
def test_values_are_quoted_when_they_must_be(capsys: pytest.CaptureFixture[str], value: object, shown: str) -> None:
    log.info("x", field=value)
    assert capsys.readouterr().err.endswith(f" field={shown}\n")


@pytest.mark.parametrize(("seconds", "shown"), [(0.0125, "12.500000ms"), (2.5, "2.500000000s")])
def test_every_call_leaves_an_access_line_on_stdout(
    capsys: pytest.CaptureFixture[str], seconds: float, shown: str
) -> None:
    log.access(200, seconds, "127.0.0.1", "POST /api/chat")
    out = capsys.readouterr().out
    assert re.fullmatch(
        rf'\[GIN\] \d{{4}}/\d\d/\d\d - \d\d:\d\d:\d\d \| 200 \| +{shown} \| +127\.0\.0\.1 \| POST +"/api/chat"\n', out
    )
