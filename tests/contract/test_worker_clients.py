"""The `openai` and `ollama` packages against a whole worker: behind a queue, and behind a load balancer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ollama
import openai
import pydantic
import pytest

from tests.fakes import chat_templates
from worker.local.process import free_port
from worker.local.queue import LocalQueue

if TYPE_CHECKING:
    from tests.conftest import Workers

LIMIT_S = 110.0
HI: list[Any] = [{"role": "user", "content": "Say hi."}]
SAMPLED: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "seed": 1}
OPTIONS = {"num_predict": 8, "temperature": 0, "seed": 1}
FAKE_MODELS = "smol,tools=completion+tools,think=completion+thinking"


# "real" is the local engine, or the Ollama that OLLAMA_BIN names.
SERVERS = ("real", "fake")
# A queue takes jobs, not Ollama's API.
BEHIND_A_GATEWAY = pytest.mark.parametrize("front", [f"{kind}-gateway" for kind in SERVERS], indirect=True)


class Person(pydantic.BaseModel):
    """What an answer must be."""

    age: int


class Front(NamedTuple):
    """Where a worker is called; `native` is empty where only jobs are taken."""

    openai: str
    native: str


@pytest.fixture(scope="module", params=[f"{kind}-{way}" for kind in SERVERS for way in ("queue", "gateway")])
def front(request: pytest.FixtureRequest, module_workers: Workers, model_store: Path) -> Iterator[Front]:
    kind, _, way = request.param.partition("-")
    settings = {
        "OLLAMA_MODELS": str(model_store),
        "OLLAMA_MODEL": "smol",
        "OLLAMA_MAX_LOADED_MODELS": "3",
        "LLAMA_ARG_THREADS": "1",
        "FAKE_MODELS": FAKE_MODELS,
    }
    port = free_port()
    if way == "gateway":
        settings |= {"WORKER_MODE": "load_balancer", "PORT": str(port)}
    with LocalQueue() as queue:
        worker = module_workers.start(queue, real=kind == "real", **settings)
        worker.wait_event("loop.started", LIMIT_S)
        url = f"http://127.0.0.1:{port}"
        yield Front(f"{url}/v1", url) if way == "gateway" else Front(queue.openai_url, "")
        worker.stop()


@pytest.fixture
def client(front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=front.openai, api_key="none", max_retries=0, timeout=LIMIT_S) as opened:
        yield opened


@pytest.fixture
def native(front: Front) -> Iterator[ollama.Client]:
    with ollama.Client(front.native, timeout=LIMIT_S) as opened:
        yield opened


def said(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"It snows in {city}."


# --- openai


def test_a_streamed_chat_is_the_whole_one_and_ends_with_its_usage(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="smol", messages=HI, **SAMPLED)
    chunks = list(
        client.chat.completions.create(
            model="smol", messages=HI, stream=True, stream_options={"include_usage": True}, **SAMPLED
        )
    )
    assert said(chunks) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"


def test_a_stop_text_ends_the_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="smol", messages=HI, **SAMPLED).choices[0].message.content or ""
    stop = whole[len(whole) // 2 :]
    chunks = list(client.chat.completions.create(model="smol", messages=HI, stop=[stop], stream=True, **SAMPLED))
    assert whole.startswith(said(chunks))
    assert stop not in said(chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_an_answer_has_the_structure_that_was_asked_for(client: openai.OpenAI) -> None:
    made = client.chat.completions.parse(model="smol", messages=HI, response_format=Person, max_tokens=120)
    assert isinstance(made.choices[0].message.parsed, Person)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_apart_from_what_is_said(client: openai.OpenAI, *, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "think", "messages": HI, "reasoning_effort": "high", **SAMPLED, "max_tokens": 40}
    if stream:
        parts = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    else:
        parts = [client.chat.completions.create(**asked).choices[0].message]
    assert "".join(getattr(part, "reasoning", "") or "" for part in parts)


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_calls_the_tool_that_the_model_wants_and_goes_on(client: openai.OpenAI, *, stream: bool) -> None:
    messages = chat_templates.conversation(openai=True)
    asked: dict[str, Any] = {"model": "tools", "temperature": 0, "seed": 1, "max_tokens": 60}
    tools = [chat_templates.WEATHER]
    if stream:
        deltas = [
            c.choices[0] for c in client.chat.completions.create(**asked, messages=messages, tools=tools, stream=True)
        ]
        calls = [call for choice in deltas for call in choice.delta.tool_calls or []]
        reason = deltas[-1].finish_reason
    else:
        choice = client.chat.completions.create(**asked, messages=messages, tools=tools).choices[0]
        calls, reason = choice.message.tool_calls or [], choice.finish_reason
    assert reason == "tool_calls"
    messages.append({"role": "assistant", "content": "", "tool_calls": [call.to_dict() for call in calls]})
    for call in calls:
        assert call.function.name == "get_weather"
        messages.append(
            {"role": "tool", "tool_call_id": call.id, "content": weather(**json.loads(call.function.arguments))}
        )
    answer = client.chat.completions.create(**asked, messages=messages)
    assert calls
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in {"stop", "length"}


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_fields_may_be_in_an_openai_body(client: openai.OpenAI, front: Front, *, stream: bool) -> None:
    # The gateway hands bodies through as they are, and the server ignores these there.
    limit = {"options": {"num_predict": 2, "top_k": 1}, "keep_alive": "1h"}
    asked: dict[str, Any] = {"model": "smol", "messages": HI, "extra_body": limit, **SAMPLED}
    if stream:
        usage = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))[
            -1
        ].usage
    else:
        usage = client.chat.completions.create(**asked).usage
    assert usage is not None
    assert usage.completion_tokens == (8 if front.native else 2)


# --- ollama


@BEHIND_A_GATEWAY
def test_ollamas_client_chats_and_streams(native: ollama.Client) -> None:
    whole = native.chat("smol", HI, options=OPTIONS)
    parts = list(native.chat("smol", HI, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert (parts[-1].done_reason, parts[-1].eval_count) == ("length", 8)


@BEHIND_A_GATEWAY
def test_ollamas_client_gets_structure_and_thoughts(native: ollama.Client) -> None:
    made = native.chat("smol", HI, format=Person.model_json_schema(), options={"num_predict": 120})
    assert Person.model_validate_json(made.message.content or "")
    assert native.chat("think", HI, think=True, options={**OPTIONS, "num_predict": 40}).message.thinking


@BEHIND_A_GATEWAY
def test_ollamas_client_loops_over_a_tool(native: ollama.Client) -> None:
    messages = chat_templates.conversation(openai=False)
    options = {"temperature": 0, "seed": 1, "num_predict": 60}
    reply = native.chat("tools", messages, tools=[chat_templates.WEATHER], options=options).message
    assert reply.tool_calls
    messages.append(reply.model_dump())
    for call in reply.tool_calls:
        told = weather(**call.function.arguments)
        messages.append({"role": "tool", "tool_name": call.function.name, "content": told})
    assert native.chat("tools", messages, options=options).message.content


@BEHIND_A_GATEWAY
def test_ollamas_client_reads_refusals(native: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        native.chat("absent", HI)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as caught:
        native.pull("smol")
    assert caught.value.status_code == 403
