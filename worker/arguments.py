"""What the options of a command may be: sizes, counts, addresses of servers; each refusal says how to write one."""

from __future__ import annotations

import argparse
from urllib.parse import urlsplit

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def size(text: str) -> int:
    """Return the bytes of a size as people write it, 500M or 1.5T; never fewer than none.

    Raises:
        argparse.ArgumentTypeError: it is no size, or a negative one.
    """
    number, unit = text.upper().removesuffix("B"), ""
    if number[-1:] in _UNITS and number[-1:]:
        number, unit = number[:-1], number[-1:]
    try:
        found = int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes: say 500M, 100G or 1.5T")
    return found


def count(text: str) -> int:
    """Return a number of at least 1; raise argparse.ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no count: say 1 or more")
    return int(text)


def server(text: str) -> str:
    """Return the base URL of a server; raise argparse.ArgumentTypeError when it is no address of one."""
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urlsplit(url)
        # The port is looked at only when it is asked for.
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text!r} is no server's address: say http://127.0.0.1:11434")
    return url
