from __future__ import annotations

import pytest

from worker import remedy

MINE = {"WORKER_SERVER_COMMAND": "/nosuch/ollama serve"}


def test_a_program_that_is_not_there_leads_to_what_named_it() -> None:
    assert remedy.absent(MINE) == (
        "Check WORKER_SERVER_COMMAND (with `make run`: OLLAMA_BIN): the program must be here and executable"
    )
    for environ in ({}, {"WORKER_SERVER_COMMAND": " "}):
        assert remedy.absent(environ).startswith("Install Ollama, or set WORKER_SERVER_COMMAND")


@pytest.mark.parametrize(
    ("return_code", "tail", "host", "text"),
    [
        (
            0,
            [],
            "",
            "It logged nothing, as no Ollama does: check WORKER_SERVER_COMMAND (with `make run`: OLLAMA_BIN)",
        ),
        (-9, [], "", "It logged nothing"),
        (3, ["the reason"], "", ""),
        (3, ["a", "b", " ", "c", "d"], "", "Before that it logged: b | c"),
        (
            1,
            ["warning", "Error: listen tcp 127.0.0.1:7: bind: address already in use"],
            "127.0.0.1:7",
            "OLLAMA_HOST is 127.0.0.1:7: end what listens there, or set OLLAMA_HOST to a free port, as 127.0.0.1:11435",
        ),
        (
            1,
            ["Error: listen tcp 127.0.0.1:11434: bind: address already in use"],
            " ",
            "OLLAMA_HOST is 127.0.0.1:11434: end what listens there, or set OLLAMA_HOST to a free port",
        ),
        (
            1,
            ["Error: listen tcp: lookup foo: no such host"],
            "foo:bar",
            "OLLAMA_HOST is foo:bar: set it to an address of this machine and a port, as 127.0.0.1:11434",
        ),
    ],
)
def test_what_was_said_last_tells_what_to_do(return_code: int, tail: list[str], host: str, text: str) -> None:
    told = remedy.after_end(return_code, tail, {"OLLAMA_HOST": host})
    assert told.startswith(text)
    assert bool(told) == bool(text)


def test_the_reason_that_the_error_has_is_not_repeated() -> None:
    line = "Error: listen tcp: Address already in use"
    assert line not in remedy.after_end(1, ["before", line], {})
