from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker import errors
from worker.errors import (
    BootError,
    ConfigInvalid,
    JobError,
    ModelNotFound,
    ServerExited,
    ServerLost,
    ServerRejected,
    ServerTimeout,
    WeightsUnavailable,
    WorkerError,
)

ROOT = Path(__file__).parents[2]
# "│   ├── GpuUnusable        11  no device …": how deep, which class, which number.
TREE_LINE = re.compile(r"^(?P<indent>[│ ]*)[├└]── (?P<name>\w+)(?:\(\w+\))?\s+(?P<number>\d+|\*)?")


def below(kind: type[WorkerError]) -> Iterator[type[WorkerError]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


KINDS = list(below(WorkerError))
LEAVES = [kind for kind in KINDS if not kind.__subclasses__()]


def number_of(kind: type[WorkerError]) -> str:
    """Return what the tree in the docstring should say beside `kind`."""
    if kind is ServerRejected:
        return "*"
    if kind in {BootError, JobError}:
        return ""
    return str(kind.exit_code if issubclass(kind, BootError) else kind.status)


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    told = {}
    parents = ["WorkerError"]
    for line in str(errors.__doc__).splitlines():
        if match := TREE_LINE.match(line):
            depth = len(match["indent"]) // 4
            parents[depth + 1 :] = [match["name"]]
            told[match["name"]] = (parents[depth], match["number"] or "")
    assert told == {kind.__name__: (kind.__bases__[0].__name__, number_of(kind)) for kind in KINDS}


def test_every_code_is_taken_once() -> None:
    assert all("code" in vars(kind) for kind in KINDS)
    assert len({kind.code for kind in [WorkerError, *KINDS]}) == len(KINDS) + 1


def test_exit_codes_tell_failures_apart_and_are_not_the_shells() -> None:
    codes = [kind.exit_code for kind in [BootError, *below(BootError)]]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 126 for code in codes)
    # What Python itself exits with: a failure that has no name of its own.
    assert BootError.exit_code == 1


def test_what_a_retry_can_help_is_worth_a_retry_and_nothing_else() -> None:
    assert {kind.__name__ for kind in KINDS if kind.retryable} == {
        "ServerExited",
        "ServerTimeout",
        "ServerLost",
        "JobTimeout",
    }
    # A client's library retries 5xx and not 4xx: the flag has to say the same.
    fixed = [kind for kind in below(JobError) if kind is not ServerRejected]
    assert all(kind.retryable == (kind.status >= 500) for kind in fixed)


def test_every_failure_is_raised_somewhere() -> None:
    raised = set()
    for path in [ROOT / "handler.py", *(ROOT / "worker").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                raised.add(node.func.id)
    assert {kind.__name__ for kind in LEAVES} - raised == set()


@pytest.mark.parametrize(
    ("message", "hint", "sentence"),
    [
        ("it broke", "", "it broke"),
        ("it broke.", "", "it broke."),
        ("it broke", "Mend it", "it broke. Mend it"),
        ("it broke.", "Mend it", "it broke. Mend it"),
        ("it broke...", "Mend it.", "it broke. Mend it."),
        ("two\nlines\t and   gaps", "", "two lines and gaps"),
        ("lines", "of\r\nhints", "lines. of hints"),
    ],
)
def test_sentence_is_one_line(message: str, hint: str, sentence: str) -> None:
    error = WorkerError(message, hint)
    assert error.sentence() == sentence
    assert (error.message, error.hint) == (message, hint)


def test_an_error_prints_as_its_message_alone() -> None:
    assert str(WeightsUnavailable("no source has it", "Look elsewhere")) == "no source has it"


@pytest.mark.parametrize(
    ("return_code", "tail", "message"),
    [
        (3, [], "the server exited with code 3"),
        (0, ["bye"], "the server exited with code 0: bye"),
        (-9, ["a", "  out of memory \n"], "the server was killed by signal 9; its last line was: out of memory"),
        (1, ["the reason", "", "  \n"], "the server exited with code 1: the reason"),
        (1, ["", " "], "the server exited with code 1"),
    ],
)
def test_server_exited_says_how_and_the_last_it_said(return_code: int, tail: list[str], message: str) -> None:
    error = ServerExited(return_code, tail, "Look at the log")
    assert error.message == message
    assert (error.return_code, error.log_tail, error.hint) == (return_code, tail, "Look at the log")


@pytest.mark.parametrize(
    ("limit_s", "words"), [(120.0, "within 120 s"), (0.5, "within 0.5 s"), (3600.0, "within 3600 s")]
)
def test_server_timeout_names_stage_and_limit(limit_s: float, words: str) -> None:
    error = ServerTimeout("load", limit_s)
    assert error.message == f"stage 'load' did not finish {words}"
    assert (error.stage, error.limit_s) == ("load", limit_s)


def test_server_rejected_keeps_the_servers_status_to_itself() -> None:
    error = ServerRejected(503, "server busy", "Wait")
    assert (error.status, error.message, error.hint) == (503, "server busy", "Wait")
    assert ServerRejected(400, "bad").status == 400
    assert JobError("x").status == 500


def test_a_boot_error_is_no_job_error() -> None:
    # The job flow catches one kind and the composition root the other: neither may see both.
    assert not {*below(BootError)} & {*below(JobError)}
    with pytest.raises(BootError):
        raise ConfigInvalid("x")
    with pytest.raises(JobError):
        raise ServerLost("x")
    assert isinstance(ModelNotFound("x"), WorkerError)
