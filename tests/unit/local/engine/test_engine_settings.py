from __future__ import annotations

import math
from pathlib import Path

import pytest

from worker.local.engine.settings import Settings, parse_host


@pytest.mark.parametrize(
    ("value", "host", "port"),
    [
        ("", "127.0.0.1", 11434),
        ("127.0.0.1:18434", "127.0.0.1", 18434),
        (":8080", "0.0.0.0", 8080),  # noqa: S104 - what the text means
        ("0.0.0.0", "0.0.0.0", 11434),  # noqa: S104 - same
        ("localhost", "localhost", 11434),
        ("example.org:99", "example.org", 99),
        ("http://10.0.0.1:5000", "10.0.0.1", 5000),
        ("http://10.0.0.1", "10.0.0.1", 80),
        ("https://10.0.0.1", "10.0.0.1", 443),
        ("http://10.0.0.1:5000/path", "10.0.0.1", 5000),
        ("[::1]:99", "::1", 99),
        ("[::1]", "::1", 11434),
        ("::1", "::1", 11434),
        ("host:0", "host", 0),
        ("host:99999", "host", 11434),
        ("host:word", "host", 11434),
    ],
)
def test_every_form_of_the_address(value: str, host: str, port: int) -> None:
    assert parse_host(value) == (host, port)


def test_an_empty_environment_has_ollamas_defaults() -> None:
    settings = Settings.from_environment({})
    assert (settings.host, settings.port) == ("127.0.0.1", 11434)
    assert settings.models == Path.home() / ".ollama" / "models"
    assert (settings.keep_alive_s, settings.load_timeout_s) == (300, 300)
    assert (settings.context_length, settings.parallel, settings.max_loaded, settings.max_queue) == (4096, 1, 3, 512)


def test_every_variable_is_read(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "OLLAMA_HOST": " 'http://127.0.0.1:7000' ",
            "OLLAMA_MODELS": str(tmp_path),
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_LOAD_TIMEOUT": "30m",
            "OLLAMA_CONTEXT_LENGTH": "1024",
            "OLLAMA_NUM_PARALLEL": "4",
            "OLLAMA_MAX_LOADED_MODELS": "1",
            "OLLAMA_MAX_QUEUE": "0",
        }
    )
    assert settings == Settings("127.0.0.1", 7000, tmp_path, math.inf, 1800, 1024, 4, 1, 0)


@pytest.mark.parametrize("value", ["0", "-1", "-5m"])
def test_no_load_timeout_is_no_limit(value: str) -> None:
    assert Settings.from_environment({"OLLAMA_LOAD_TIMEOUT": value}).load_timeout_s == math.inf


@pytest.mark.parametrize("value", ["", "many", "-2", "1.5"])
def test_a_count_that_cannot_be_read_is_its_default(value: str) -> None:
    settings = Settings.from_environment({"OLLAMA_NUM_PARALLEL": value, "OLLAMA_MAX_QUEUE": value})
    assert (settings.parallel, settings.max_queue) == (1, 512)


def test_zero_slots_are_one() -> None:
    assert Settings.from_environment({"OLLAMA_NUM_PARALLEL": "0"}).parallel == 1
