from __future__ import annotations

import base64
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from worker import multipart
from worker.errors import JobInvalid

SOUND = bytes(range(256)) * 3 + b"\r\n--"
FILE = base64.b64encode(SOUND).decode()


def refused(**body: Any) -> JobInvalid:
    with pytest.raises(JobInvalid) as caught:
        multipart.encode(body)
    return caught.value


async def read(form: bytes, content_type: str) -> dict[str, Any]:
    """Return the parts of a form as a real server reads it; a file as its name and content."""
    parts: dict[str, Any] = {}

    async def take(request: web.Request) -> web.Response:
        for name, value in (await request.post()).items():
            parts[name] = value if isinstance(value, str) else (value.filename, value.file.read())
            if not isinstance(value, str):
                value.file.close()
        return web.Response()

    application = web.Application()
    application.router.add_post("/", take)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            async with session.post(url, data=form, headers={"Content-Type": content_type}) as answer:
                assert answer.status == 200
    finally:
        await runner.cleanup()
    return parts


@pytest.mark.parametrize("file", [FILE, f"data:audio/wav;base64,{FILE}"])
async def test_a_server_reads_what_was_sent(file: str) -> None:
    body = {"model": "m:1b", "file": file, "language": "日本語", "temperature": 0.5, "prompt": None, "stream": True}
    parts = await read(*multipart.encode(body))
    assert parts == {"model": "m:1b", "language": "日本語", "temperature": "0.5", "file": ("audio", SOUND)}


async def test_names_cannot_add_parts() -> None:
    name = 'a"\r\n\r\nb--'
    parts = await read(*multipart.encode({name: "x", "file": FILE, "filename": 'c"\r\nd'}))
    assert list(parts) in ([name, "file"], ["a%22%0D%0A%0D%0Ab--", "file"])
    assert parts["file"][1] == SOUND


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "'file' must be a base64 string, got null"),
        ({"file": ""}, "'file' is empty"),
        ({"file": 3}, "'file' must be a base64 string, got a number"),
        ({"file": "a"}, "'file' is not base64"),
        ({"file": "ä==="}, "'file' is not base64"),
        ({"file": "data:audio/wav"}, "'file' is empty"),
        ({"file": FILE, "language": ["x"]}, "'language' must be text, got a list"),
        ({"file": FILE, "diarize": True}, "'diarize' must be text, got true/false"),
        ({"file": FILE, "filename": 1.5, "x": {}}, "'x' must be text, got an object"),
        ({"file": FILE, "response_format": "text"}, "'response_format' cannot be 'text'"),
    ],
)
def test_what_is_no_form_is_said(body: dict[str, Any], words: str) -> None:
    assert words in refused(**body).message
