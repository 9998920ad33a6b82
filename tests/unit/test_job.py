from __future__ import annotations

import json
import math
from typing import Any

import pytest

from worker import job
from worker.errors import JobInvalid, RouteForbidden
from worker.job import Request, Shape
from worker.routes import Framing

MODEL = "default:1b"
CHAT = [{"role": "user", "content": "hi"}]
DEEP = 100_000


def parse(value: object, *, allow_admin: bool = False) -> Request:
    return job.parse(value, default_model=MODEL, allow_admin=allow_admin)


def body(request: Request) -> Any:
    """Read the body as strictly as the server does."""
    assert request.body is not None
    assert request.body.isascii()
    return json.loads(request.body, parse_constant=pytest.fail)


def refused(value: object) -> JobInvalid:
    with pytest.raises(JobInvalid) as caught:
        parse(value)
    return caught.value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# --- The stock shape


def test_a_prompt_goes_to_generate() -> None:
    request = parse({"prompt": "why?", "options": {"seed": 1}})
    assert (request.shape, request.route.path, request.model) == (Shape.STOCK, "/api/generate", MODEL)
    assert (request.stream, request.framing) == (False, Framing.JSON)
    assert body(request) == {"prompt": "why?", "options": {"seed": 1}, "model": MODEL, "stream": False}


def test_messages_go_to_chat() -> None:
    request = parse({"messages": CHAT, "stream": True, "model": "other"})
    assert (request.route.path, request.model) == ("/api/chat", "other")
    assert (request.stream, request.framing) == (True, Framing.NDJSON)
    assert body(request) == {"messages": CHAT, "stream": True, "model": "other"}


EXTRAS: dict[str, Any] = {
    "format": {"type": "object"},
    "template": "{{ .Prompt }}",
    "keep_alive": "5m",
    "think": "high",
    "logprobs": True,
    "top_logprobs": 3,
    "options": {"num_ctx": 8192},
}


def test_fields_of_the_stock_worker_reach_the_server() -> None:
    only = {"images": ["aGk="], "suffix": "end", "raw": True, "system": "Be short."}
    assert body(parse({"prompt": "p", **EXTRAS, **only})).items() >= (EXTRAS | only).items()
    assert body(parse({"messages": CHAT, **EXTRAS, "tools": [{}]})).items() >= (EXTRAS | {"tools": [{}]}).items()
    for value in (0, -1, 2.5, "-1"):
        assert body(parse({"prompt": "p", "keep_alive": value}))["keep_alive"] == value


def test_null_is_as_good_as_absent() -> None:
    nothing = dict.fromkeys(["model", "stream", "options", "tools", "format", "system", "images", "messages"])
    assert parse({"prompt": "p", **nothing}) == parse({"prompt": "p"})
    assert parse({"messages": CHAT, "prompt": None}) == parse({"messages": CHAT})


def test_an_empty_model_is_the_resident_one() -> None:
    for shape in (
        {"prompt": "p", "model": ""},
        {"route": "/api/chat", "body": {"messages": CHAT, "model": ""}},
        {"openai_route": "/v1/chat/completions", "openai_input": {"messages": CHAT, "model": None}},
    ):
        request = parse(shape)
        assert (request.model, body(request)["model"]) == (MODEL, MODEL)


def test_system_becomes_the_first_message() -> None:
    asked = {"messages": CHAT, "system": "Be short."}
    request = parse(asked)
    assert body(request)["messages"] == [{"role": "system", "content": "Be short."}, *CHAT]
    assert "system" not in body(request)
    assert asked == {"messages": CHAT, "system": "Be short."}, "the job itself is not ours to change"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "got null"),
        ("hi", "got a string"),
        ([], "got a list"),
        (3, "got a number"),
        (True, "got true/false"),
        ({}, "neither 'messages' nor 'prompt'"),
        ({"messages": CHAT, "prompt": "p"}, "both 'messages' and 'prompt'"),
        ({"messages": []}, "'messages' is empty"),
        ({"messages": ["hi"]}, "messages[0] must be an object with 'role' and 'content', got a string"),
        ({"messages": [*CHAT, {"content": "x"}]}, "messages[1] has no 'role'"),
        ({"messages": [{"role": 1}]}, "messages[0] has no 'role'"),
        ({"messages": "hi"}, "'messages' must be a list of messages, got a string"),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, "'system' is given twice"),
        ({"messages": CHAT, "images": []}, "'images' does not go with 'messages'"),
        ({"messages": CHAT, "raw": True}, "'raw' does not go with 'messages'"),
        ({"prompt": "p", "tools": []}, "'tools' does not go with 'prompt'"),
        ({"prompt": ["p"]}, "'prompt' must be a string, got a list"),
        ({"prompt": "p", "stream": "true"}, "'stream' must be true or false, got a string"),
        ({"prompt": "p", "stream": 1}, "'stream' must be true or false, got a number"),
        ({"prompt": "p", "keep_alive": True}, "'keep_alive' must be a duration, got true/false"),
        ({"prompt": "p", "top_logprobs": True}, "'top_logprobs' must be a number, got true/false"),
        ({"prompt": "p", "options": []}, "'options' must be an object, got a list"),
        ({"prompt": "p", "model": 7}, "'model' must be a string, got a number"),
        ({"promt": "p"}, "unknown field 'promt' (did you mean 'prompt'?)"),
        ({"prompt": "p", "x" * 200: 1}, "unknown field 'xxx"),
        ({"prompt": "p", "temperature": math.nan}, "'temperature' is not a field of the input"),
        ({"prompt": "p", "options": {"top_p": math.inf}}, "NaN or Infinity"),
    ],
)
def test_what_is_wrong_is_said(value: object, words: str) -> None:
    error = refused(value)
    assert words in error.message
    assert len(error.sentence()) < 300


@pytest.mark.parametrize(
    ("name", "option"),
    [("temperature", "temperature"), ("num_ctx", "num_ctx"), ("seed", "seed"), ("max_tokens", "num_predict")],
)
def test_an_option_beside_the_options_is_sent_there_under_its_own_name(name: str, option: str) -> None:
    error = refused({"prompt": "p", name: 1})
    assert error.hint == f"Put it into 'options': {{\"{option}\": …}}"


# --- The OpenAI shape


@pytest.mark.parametrize("stream", [None, False, True])
def test_an_openai_route_takes_its_input_as_it_is(*, stream: bool | None) -> None:
    given_ = {"messages": CHAT, "stream": stream, "max_tokens": 5, "unheard_of": {"x": 1}}
    request = parse({"openai_route": "/v1/chat/completions", "openai_input": given_})
    assert (request.shape, request.stream) == (Shape.OPENAI, bool(stream))
    assert request.framing is (Framing.SSE if stream else Framing.JSON)
    assert body(request) == given_ | {"model": MODEL}


@pytest.mark.parametrize("empty", [None, {}, "", {"ignored": True}])
def test_a_get_route_needs_no_input(empty: object) -> None:
    request = parse({"openai_route": "/v1/models", "openai_input": empty})
    assert request == Request(Shape.OPENAI, request.route, None, stream=False, model="")
    assert request.route.method == "GET"
    assert parse({"openai_route": "/v1/models"}) == request


def test_an_input_may_be_json_text() -> None:
    given_ = {"messages": CHAT, "stream": True}
    text = parse({"openai_route": "/v1/chat/completions", "openai_input": json.dumps(given_)})
    assert text == parse({"openai_route": "/v1/chat/completions", "openai_input": given_})


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed", "/api/show"])
def test_what_comes_as_one_object_is_not_a_stream_whatever_is_asked(path: str) -> None:
    request = parse({"openai_route": path, "openai_input": {"input": "x", "stream": True}})
    assert (request.stream, request.framing) == (False, Framing.JSON)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"openai_route": "/v1/chat/completions"}, "route /v1/chat/completions needs a body"),
        ({"openai_route": "/v1/chat/completions", "openai_input": ""}, "needs a body"),
        ({"openai_route": "/v1/chat/completions", "openai_input": {}}, "needs a body"),
        ({"openai_route": "/v1/chat/completions", "openai_input": []}, "must be an object, got a list"),
        ({"openai_route": "/v1/chat/completions", "openai_input": "hi"}, "is a string that is not JSON"),
        ({"openai_route": "/v1/chat/completions", "openai_input": "[1]"}, "must be an object, got a list"),
        ({"openai_route": "/v1/chat/completions", "openai_input": "null"}, "needs a body"),
        ({"openai_route": "/v1/chat/completions", "openai_input": '{"a": NaN}'}, "NaN or Infinity"),
        ({"openai_route": "/v1/chat/completions", "openai_input": {"stream": "yes"}}, "'stream' must be true or false"),
        ({"openai_route": "v1/models"}, "'openai_route' must be a path"),
        ({"openai_route": None}, "'openai_route' must be a path"),
        ({"openai_input": {}}, "'openai_route' must be a path"),
    ],
)
def test_what_is_wrong_with_an_openai_job_is_said(value: object, words: str) -> None:
    assert words in refused(value).message


# --- The native shape


def test_a_native_route_answers_once_unless_asked_to_stream() -> None:
    once = parse({"route": "/api/chat", "body": {"messages": CHAT}})
    assert (once.shape, once.stream, once.framing) == (Shape.NATIVE, False, Framing.JSON)
    assert body(once) == {"messages": CHAT, "model": MODEL, "stream": False}
    streamed = parse({"route": "/api/chat", "body": {"messages": CHAT, "stream": True}})
    assert (streamed.stream, streamed.framing) == (True, Framing.NDJSON)
    assert body(streamed)["stream"] is True


def test_a_route_that_never_streams_is_not_told_to_stop() -> None:
    assert "stream" not in body(parse({"route": "/api/embed", "body": {"input": "x"}}))


def test_the_method_may_be_said_if_it_is_right() -> None:
    assert parse({"route": "/api/tags", "method": "GET"}) == parse({"route": "/api/tags"})
    assert "takes GET, not 'POST'" in refused({"route": "/api/tags", "method": "POST"}).message
    assert "takes POST, not a list" in refused({"route": "/api/chat", "body": {"a": 1}, "method": ["x"]}).message


def test_fields_beside_the_route_are_not_dropped_silently() -> None:
    error = refused({"route": "/api/chat", "messages": CHAT})
    assert "unknown field 'messages' beside 'route'" in error.message
    assert "'body'" in error.hint
    assert "'route' must be a path" in refused({"route": 5}).message


@pytest.mark.parametrize("shape", [{"openai_route": "/api/pull", "openai_input": {}}, {"route": "/api/pull"}])
def test_the_store_is_changed_only_where_that_was_allowed(shape: dict[str, Any]) -> None:
    with pytest.raises(RouteForbidden):
        job.parse(shape, default_model=MODEL)
    asked = {"route": "/api/pull", "body": {"model": "m", "stream": True}}
    assert parse(asked, allow_admin=True).framing is Framing.NDJSON
    delete = parse({"route": "/api/delete", "body": {"model": "m"}}, allow_admin=True)
    assert (delete.route.method, delete.model) == ("DELETE", "m")
    assert "model" not in body(parse({"route": "/api/copy", "body": {"source": "a"}}, allow_admin=True))


# --- Anything at all


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "p", "options": {"x": nested(DEEP)}},
        {"route": "/api/chat", "body": {"model": nested(DEEP)}},
        {"openai_route": "/v1/completions", "openai_input": {"x": nested(DEEP)}},
        {"openai_route": "/v1/completions", "openai_input": "[" * DEEP},
    ],
    ids=["stock", "native", "openai", "text"],
)
def test_a_body_nested_without_end_is_the_senders_fault(value: object) -> None:
    with pytest.raises(JobInvalid, match="nested too deeply"):
        parse(value)


def test_half_a_character_reaches_the_server_as_an_escape() -> None:
    request = parse({"prompt": "a\ud83d"})
    assert '"a\\ud83d"' in str(request.body)
    assert refused({"\ud83d": 1}).message == r"unknown field '\ud83d'"
