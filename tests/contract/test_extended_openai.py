"""An OpenAI request with Ollama's fields gets the answer that the server's own OpenAI route would give."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import chat_templates
from tests.fakes.api_server import ApiServer
from worker import job, openai_answer
from worker.openai_extension import CHAT, COMPLETION

HI = [{"role": "user", "content": "Say hi."}]
SAMPLED = {"model": "smol", "max_tokens": 6, "temperature": 0, "seed": 1}
ANSWERED = [
    *chat_templates.conversation(openai=True),
    {"role": "tool", "tool_call_id": "Rome", "content": "3 degrees"},
]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": HI}),
    "parts": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("Say", " hi.")]}]},
    ),
    "stop": (CHAT, {"messages": HI, "stop": "e"}),
    "schema": (
        CHAT,
        {
            "messages": HI,
            "max_tokens": 60,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n",
                    "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
                },
            },
        },
    ),
    "logprobs": (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 2}),
    "a call": (
        CHAT,
        {
            "model": "tools",
            "messages": chat_templates.conversation(openai=True),
            "tools": [chat_templates.WEATHER],
            "max_tokens": 60,
        },
    ),
    "an answered call": (CHAT, {"model": "tools", "messages": ANSWERED}),
    "thinking": (CHAT, {"model": "think", "messages": HI, "reasoning_effort": "high"}),
    "no thinking": (CHAT, {"model": "think", "messages": HI, "reasoning_effort": "none"}),
    "completion": (COMPLETION, {"prompt": "Say hi."}),
    "penalty": (COMPLETION, {"prompt": "Say hi.", "frequency_penalty": 0.5, "stop": ["e"]}),
}


def extended(api: ApiServer, path: str, body: dict[str, Any]) -> str:
    """Return the text an OpenAI client would get through a job."""
    request = job.parse({"openai_route": path, "openai_input": {**body, "options": {}}}, default_model="none")
    assert request.asked is not None
    translated = openai_answer.translator(request)
    answer = api.post(request.route.path, data=request.body, headers={"Content-Type": request.content_type})
    assert answer.status_code == 200, answer.text
    frames = answer.content.decode().splitlines() if request.stream else [answer.content.decode()]
    return "".join(translated(frame) for frame in frames)


def comparable(text: str) -> list[Any]:
    """Return objects without what differs between any two answers."""
    if not text.startswith("data: "):
        return [_settled(json.loads(text))]
    events = text.removesuffix("\n\n").split("\n\n")
    return [event if event == "data: [DONE]" else _settled(json.loads(event[6:])) for event in events]


def _settled(value: dict[str, Any]) -> dict[str, Any]:
    assert value["id"].partition("-")[0] in {"chatcmpl", "cmpl"}
    assert isinstance(value["created"], int)
    for choice in value["choices"]:
        for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls", []):
            assert call.pop("id")
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return {name: part for name, part in value.items() if name not in {"id", "created"}}


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
def test_the_answer_is_the_one_of_the_servers_own_route(
    api: ApiServer, path: str, body: dict[str, Any], *, stream: bool, usage: bool
) -> None:
    asked = {**SAMPLED, **body, "stream": stream, "stream_options": {"include_usage": usage}}
    own = api.post(path, asked)
    assert own.status_code == 200, own.text
    assert comparable(extended(api, path, asked)) == comparable(own.content.decode())
