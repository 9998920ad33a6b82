from __future__ import annotations

import argparse

import pytest

from worker.arguments import count, server, size


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("100", 100), ("100G", 100 * 10**9), ("1.5T", 1_500_000_000_000), ("20gb", 20 * 10**9), ("5KB", 5000)],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["much", "", "1X", "inf", "1e999", "nan", "-5G", "-1", "-inf"])
def test_what_is_no_size_is_told_with_examples(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        size(text)
    assert str(caught.value) == f"{text!r} is no number of bytes: say 500M, 100G or 1.5T"


def test_a_count_begins_at_one() -> None:
    assert [count("1"), count("16")] == [1, 16]


@pytest.mark.parametrize("text", ["0", "-1", "", "two", "1.5", "\u0663"])
def test_what_is_no_count_is_told(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="say 1 or more"):
        count(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:11434/", "http://127.0.0.1:11434"),
        ("127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("box", "http://box"),
        ("https://box.example/ollama/", "https://box.example/ollama"),
        ("[::1]:11434", "http://[::1]:11434"),
    ],
)
def test_a_server_is_named_with_or_without_its_scheme(text: str, url: str) -> None:
    assert server(text) == url


@pytest.mark.parametrize(
    "text", ["", "http://", "127.0.0.1:99999", "127.0.0.1:0", "box:port", "ftp://box", "http://[::1"]
)
def test_what_is_no_server_is_told_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        server(text)
    assert str(caught.value) == f"{text!r} is no server's address: say http://127.0.0.1:11434"
