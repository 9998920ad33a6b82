from __future__ import annotations

from typing import Any

import pytest

from worker import images, job
from worker.errors import JobInvalid

URL = "data:image/png;base64,aGk="


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


WITH: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "p", "images": ["aGk="]},
    "messages": {"messages": [user("a"), user("b", images=["aGk="])]},
    "openai": {"messages": [user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": URL}}])]},
    "sound": {"messages": [user([{"type": "input_audio", "input_audio": {"data": "aGk="}}])]},
    "responses": {"input": [user([{"type": "input_image", "image_url": URL}])]},
    "anthropic": {"messages": [user([{"type": "image", "source": {}}])]},
    "tool result": {"messages": [user([{"type": "tool_result", "content": [{"type": "image", "source": {}}]}])]},
    "transcription": {"file": "aGk="},
}
WITHOUT: list[dict[str, Any]] = [
    {},
    {"prompt": "image_url", "images": []},
    {"messages": [user("a", images=None)]},
    {"messages": [user([{"type": "text", "text": "image"}]), "x", user(None)]},
    {"messages": [user("a", tool_calls=[{"function": {"arguments": {"type": "image"}}}])]},
    {"input": "image", "tools": [{"type": "image"}]},
]


@pytest.mark.parametrize("body", WITH.values(), ids=WITH)
def test_an_image_is_refused_with_the_name_of_the_setting(body: dict[str, Any]) -> None:
    with pytest.raises(JobInvalid) as caught:
        images.refuse(body)
    assert caught.value.status == 400
    assert "OLLAMA_SKIP_MMPROJ" in caught.value.message
    assert "unset OLLAMA_SKIP_MMPROJ" in caught.value.hint


@pytest.mark.parametrize("body", WITHOUT, ids=str)
def test_text_passes(body: dict[str, Any]) -> None:
    images.refuse(body)


def test_depth_does_no_harm() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [{"content": deep}]
    images.refuse({"messages": deep})
    # Freed from the outside in: the interpreter would recurse otherwise.
    while isinstance(deep, list):
        deep = deep.pop().pop("content")


JOBS: dict[str, dict[str, Any]] = {
    "stock prompt": WITH["prompt"],
    "stock chat": WITH["messages"],
    "native": {"route": "/api/chat", "body": WITH["messages"]},
    "openai": {"openai_route": "/v1/chat/completions", "openai_input": WITH["openai"]},
    "extended": {"openai_route": "/v1/chat/completions", "openai_input": {**WITH["openai"], "options": {"top_k": 1}}},
    "messages": {"openai_route": "/v1/messages", "openai_input": WITH["anthropic"]},
    "transcription": {"openai_route": "/v1/audio/transcriptions", "openai_input": WITH["transcription"]},
}


@pytest.mark.parametrize("value", JOBS.values(), ids=JOBS)
def test_every_shape_is_looked_at_where_the_projector_is_left_out(value: dict[str, Any]) -> None:
    assert job.parse(value, default_model="m").body
    with pytest.raises(JobInvalid, match="OLLAMA_SKIP_MMPROJ"):
        job.parse(value, default_model="m", allow_images=False)
