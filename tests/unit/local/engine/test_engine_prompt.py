from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from worker.local.engine import fit, prompt
from worker.local.engine.body import Body
from worker.local.engine.options import Options
from worker.local.engine.reply import ApiError
from worker.local.engine.runner import Runner, RunnerSpec

NewSpec = Callable[..., RunnerSpec]
PIXEL = "iVBORw0KGgo="


@pytest.fixture
async def runner(new_spec: NewSpec, http: aiohttp.ClientSession) -> AsyncIterator[Runner]:
    """A scripted runner with a context of 20 in whose tokenizer a token is a word."""
    started = await Runner.start(new_spec(context=20), http, 60)
    yield started
    await started.stop()


def chat(**fields: Any) -> dict[str, Any]:
    body = Body({"model": "m", **fields})
    return prompt.chat_request(body, Options.merge([], 100), body.messages)


def completion(**fields: Any) -> dict[str, Any]:
    return prompt.completion_request(Body({"model": "m", **fields}), Options.merge([], 100), "text")


def test_a_message_keeps_what_llama_needs() -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": {"x": 1}}}
    (asked, answered) = chat(
        messages=[
            {"role": "assistant", "content": "", "tool_calls": [call], "thinking": "hm"},
            {"role": "tool", "content": "done", "tool_name": "f", "tool_call_id": "c1"},
        ]
    )["messages"]
    assert asked["tool_calls"] == [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    assert answered == {"role": "tool", "content": "done", "name": "f", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("image", "kind"),
    [(PIXEL, "png"), ("/9j/AAAA", "jpeg"), ("R0lGODlh", "gif"), ("UklGRgAA", "webp"), ("AAAA", "jpeg")],
)
def test_an_image_becomes_a_part_of_its_kind(image: str, kind: str) -> None:
    (message,) = chat(messages=[{"role": "user", "content": "see", "images": [image]}])["messages"]
    assert message["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{image}"}},
    ]


@pytest.mark.parametrize("image", ["!!", "A", 5, None])
def test_an_image_that_is_no_base64_is_400(image: object) -> None:
    with pytest.raises(ApiError, match="illegal base64 data") as caught:
        chat(messages=[{"role": "user", "content": "see", "images": [image]}])
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("json", {"type": "json_object"}),
        ({"type": "object"}, {"type": "json_schema", "json_schema": {"name": "schema", "schema": {"type": "object"}}}),
        (None, None),
    ],
)
def test_a_chats_format(form: object, expected: object) -> None:
    assert chat(format=form).get("response_format") == expected


def test_a_completions_format() -> None:
    assert "root ::= object" in completion(format="json")["grammar"]
    assert completion(format={"type": "object"})["json_schema"] == {"type": "object"}
    assert not {"grammar", "json_schema"} & set(completion())


def test_images_of_a_completion_go_beside_its_text() -> None:
    assert completion(images=[PIXEL])["prompt"] == {"prompt_string": "text", "multimodal_data": [PIXEL]}


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (5, 5)])
def test_logprobs(asked: int, given: int) -> None:
    assert chat(logprobs=True, top_logprobs=asked)["top_logprobs"] == given
    assert completion(logprobs=True, top_logprobs=asked)["n_probs"] == given
    assert "logprobs" not in chat(top_logprobs=asked)


def test_thinking_is_a_matter_of_the_template() -> None:
    assert "chat_template_kwargs" not in chat()
    assert chat(think=False)["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat(think="high")["chat_template_kwargs"] == {"enable_thinking": True, "reasoning_effort": "high"}


async def test_a_generate_prompt_is_rendered_with_system_and_examples(runner: Runner) -> None:
    examples = [{"role": "user", "content": "like this"}]
    body = Body({"prompt": "go", "system": "mine"})
    assert await prompt.rendered(runner, body, "models", examples) == "system: mine\nuser: like this\nuser: go"
    assert await prompt.rendered(runner, Body({"prompt": "go"}), "models", []) == "system: models\nuser: go"
    assert await prompt.rendered(runner, Body({"prompt": "go"}), "", []) == "user: go"
    thoughtful = Body({"prompt": "go", "think": True})
    assert await prompt.rendered(runner, thoughtful, "", []) == "user: go\nenable_thinking=True"


async def test_an_earlier_context_comes_first(runner: Runner) -> None:
    body = Body({"prompt": "go", "context": [1, 2]})
    assert await prompt.rendered(runner, body, "", []) == "t1 t2user: go"


async def test_a_prompt_that_fits_stays_text(runner: Runner) -> None:
    short, long = "a b c", "word " * 19
    assert await fit.shortened(runner, short, 4) == short
    assert await fit.shortened(runner, long, 4) == long


async def test_a_prompt_that_is_too_long_keeps_its_beginning_and_its_end(runner: Runner) -> None:
    # 20 of context, 4 kept: half of the other 16 stays free, so 12 tokens remain, the last 8 of them from the end.
    assert await fit.shortened(runner, "word " * 50, 4) == [0, 1, 2, 3, *range(42, 50)]


async def test_without_shifting_too_long_is_400(new_spec: NewSpec, http: aiohttp.ClientSession) -> None:
    runner = await Runner.start(new_spec(context=20, shift=False), http, 60)
    with pytest.raises(ApiError, match="longer than the context length") as caught:
        await fit.shortened(runner, "word " * 50, 4)
    assert caught.value.status == 400
    await runner.stop()


def conversation(*words: int) -> dict[str, Any]:
    """Return a system message and one message for each count of words."""
    messages = [{"role": "user", "content": " ".join(["word"] * count)} for count in words]
    return {"messages": [{"role": "system", "content": "be brief"}, *messages], "n_keep": 4}


async def test_a_conversation_that_fits_stays_whole(runner: Runner) -> None:
    request = conversation(3, 3)
    assert await fit.recent(runner, request) == request


async def test_a_conversation_loses_its_oldest_messages_but_never_its_system(runner: Runner) -> None:
    request = conversation(9, 9, 9)
    shorter = await fit.recent(runner, request)
    # Rendered, a message is its words and its role: 3 for the system, 10 for each of the others.
    assert shorter["messages"] == [request["messages"][0], request["messages"][3]]
    assert shorter["n_keep"] == 4


async def test_the_last_message_stays_even_when_it_does_not_fit(runner: Runner) -> None:
    shorter = await fit.recent(runner, conversation(9, 90))
    assert [len(message["content"].split()) for message in shorter["messages"]] == [2, 90]
