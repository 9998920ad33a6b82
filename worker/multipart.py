"""A JSON body with a file in base64 as the multipart form some routes want; pure."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from typing import Any

from worker.errors import JobInvalid
from worker.fields import kind

# The file's own two, and what the server does not know on such a route: it answers once.
_APART = {"file", "filename", "stream"}
_HINT = "Send the audio file in base64 as 'file'"


def encode(body: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a form with the fields of `body`, whose `file` is base64 or a data URL, and its content type.

    Raises:
        JobInvalid: there is no file, or a field is not plain text.
    """
    fields = {name: value for name, value in body.items() if name not in _APART and value is not None}
    if fields.get("response_format", "json") == "text":
        raise JobInvalid("a job's answer is JSON: 'response_format' cannot be 'text'", "Read 'text' of the answer")
    boundary = uuid.uuid4().hex
    parts = [_part(boundary, f'name="{_quoted(name)}"', _plain(name, value)) for name, value in fields.items()]
    filename = _quoted(_plain("filename", body.get("filename", "audio")).decode())
    parts.append(_part(boundary, f'name="file"; filename="{filename}"', _decoded(body.get("file"))))
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def _part(boundary: str, names: str, content: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {names}\r\n\r\n"
    return head.encode("utf-8", "replace") + content + b"\r\n"


def _quoted(text: str) -> str:
    """Write a name as browsers do, so that it cannot end its header."""
    for character in '"\r\n':
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _plain(name: str, value: object) -> bytes:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise JobInvalid(f"'{name}' must be text, got {kind(value)}")
    return str(value).encode("utf-8", "replace")


def _decoded(value: object) -> bytes:
    if not isinstance(value, str):
        raise JobInvalid(f"'file' must be a base64 string, got {kind(value)}", _HINT)
    text = value.partition(",")[2] if value.startswith("data:") else value
    if not text:
        raise JobInvalid("'file' is empty", _HINT)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise JobInvalid("'file' is not base64", _HINT) from exc
