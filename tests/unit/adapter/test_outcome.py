from __future__ import annotations

import json
from typing import Any

import pytest

from worker import job
from worker.adapter.outcome import failure, whole
from worker.errors import (
    JobError,
    JobInvalid,
    JobTimeout,
    ModelNotFound,
    RouteForbidden,
    ServerLost,
    ServerRejected,
)
from worker.job import Request
from worker.tally import Tally

CHAT = [{"role": "user", "content": "hi"}]
FIGURES = {"prompt_eval_count": 12, "prompt_eval_duration": 3_500_000, "eval_count": 7, "eval_duration": 250_000_000}
NATIVE = Tally(prompt_tokens=12, output_tokens=7, prefill_ms=3.5, decode_ms=250.0)


def openai(*, stream: bool) -> Request:
    return job.parse(
        {"openai_route": "/v1/chat/completions", "openai_input": {"messages": CHAT, "stream": stream}},
        default_model="m",
    )


def stock(*, stream: bool) -> Request:
    return job.parse({"messages": CHAT, "stream": stream}, default_model="m")


def native(*, stream: bool) -> Request:
    return job.parse({"route": "/v1/chat/completions", "body": {"messages": CHAT, "stream": stream}}, default_model="m")


def counted(*frames: str) -> Tally:
    tally = Tally()
    for frame in frames:
        tally.read(frame)
    return tally


# --- Figures


def test_the_last_native_object_has_the_figures() -> None:
    text = json.dumps({"message": {"content": "x"}, "done": False})
    last = json.dumps({"message": {"content": ""}, "done": True, **FIGURES})
    assert counted(text) == Tally()
    assert counted(text, last) == NATIVE
    assert counted(f"{last}\n") == NATIVE


def test_a_cached_prompt_is_not_counted_by_the_server() -> None:
    assert counted(json.dumps({"done": True, "eval_count": 7, "eval_duration": 1_000_000})) == Tally(
        output_tokens=7, decode_ms=1.0
    )


@pytest.mark.parametrize("separator", ["\u0085", "\u2028", "\u2029"])
def test_text_that_looks_like_a_line_break_does_not_hide_the_figures(separator: str) -> None:
    # JSON may hold these as they are.
    answer = f'{{"response":"a{separator}b","done":true,"eval_count":7,"prompt_eval_count":12}}'
    assert counted(answer) == Tally(prompt_tokens=12, output_tokens=7)


@pytest.mark.parametrize(
    "frame",
    [
        'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":7,"total_tokens":19}}\n\n',
        '{"choices":[{}],"usage":{"prompt_tokens":12,"completion_tokens":7}}',
        'event: message_delta\ndata: {"type":"message_delta","usage":{"input_tokens":12,"output_tokens":7}}\n\n',
        'event: response.completed\r\ndata:{"response":{"usage":{"input_tokens":12,"output_tokens":7}}}\r\n\r\n',
    ],
    ids=["chat stream", "chat", "messages", "responses"],
)
def test_usage_of_each_v1_route_is_read(frame: str) -> None:
    assert counted(frame) == Tally(prompt_tokens=12, output_tokens=7)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "data: [DONE]\n\n",
        'data: {"usage":null}\n\n',
        'data: {"usage":{"prompt_tokens":"12"}}\n\n',
        '{"response":"the \\"usage\\" of eval_count"}',
        '["eval_count", "usage"]',
        '{"eval_count": 7',
        '{"eval_count": null}',
        '{"response": "x", "usage": 3}',
    ],
)
def test_what_only_mentions_the_figures_has_none(frame: str) -> None:
    assert counted(frame) == Tally()


def test_what_is_sent_is_counted_as_it_is_posted() -> None:
    tally = Tally()
    sizes = [0]
    for value in ("é🦙", {"a": "é"}, "x\ud83d"):
        tally.sent(value)
        sizes.append(tally.body_bytes)
    assert sizes == [0, 6, 6 + 11, 6 + 11 + 2]
    assert tally.chunks == 3


# --- An answer that is not streamed


@pytest.mark.parametrize(
    "value",
    [{"message": {"content": "hi"}, "done": True}, {"error": None, "id": "x"}, {"error": ""}, [], "text", 1, None],
)
def test_an_answer_is_the_value_itself(value: Any) -> None:
    assert whole(json.dumps(value)) == value


def test_an_answer_that_would_look_like_a_failure_is_sent_as_text() -> None:
    # The SDK fails a job for a top-level "error", with Python's repr of it.
    answer = {"id": "resp_1", "error": {"message": "x"}}
    made = whole(json.dumps(answer))
    assert isinstance(made, str)
    assert json.loads(made) == answer


def test_an_answer_can_be_posted_whatever_it_holds() -> None:
    made = whole(r'{"a": "\ud83d", "b": NaN}')
    assert json.dumps(made, ensure_ascii=False, allow_nan=False).encode()
    assert made == {"a": "\ufffd", "b": None}


@pytest.mark.parametrize("frame", ["<html>", "", '{"a":'])
def test_an_answer_that_is_not_json_is_the_servers_fault(frame: str) -> None:
    with pytest.raises(ServerLost, match="is not JSON"):
        whole(frame)


# --- Errors

FINAL_ERRORS: list[tuple[JobError, str]] = [
    (JobInvalid("bad", "Mend it"), "invalid_request_error"),
    (RouteForbidden("closed"), "invalid_request_error"),
    (ModelNotFound("model 'x' not found"), "not_found_error"),
    (ServerRejected(400, "bad"), "invalid_request_error"),
    (ServerRejected(429, "slow down"), "invalid_request_error"),
    (ServerRejected(499, "gone"), "invalid_request_error"),
    (ServerRejected(500, "broken"), "api_error"),
    (ServerRejected(503, "busy"), "api_error"),
]
RETRYABLE: list[JobError] = [ServerLost("gone", "Send it again"), JobTimeout("silent")]
ANY_ERROR = pytest.mark.parametrize("error", [*(error for error, _ in FINAL_ERRORS), *RETRYABLE], ids=repr)
BOTH = pytest.mark.parametrize("stream", [False, True])


def error_object(value: Any, *, stream: bool) -> Any:
    """Read an answer as an OpenAI client does; return what is in its `error`."""
    assert isinstance(value, str)
    if stream:
        first, done, rest = value.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        value = first.removeprefix("data: ")
    (name, error) = json.loads(value).popitem()
    assert name == "error"
    return error


@BOTH
@pytest.mark.parametrize(("error", "kind"), FINAL_ERRORS, ids=repr)
def test_an_openai_client_gets_openais_error_object(error: JobError, kind: str, *, stream: bool) -> None:
    value = failure(error, openai(stream=stream), as_body=True, streaming=False)
    assert error_object(value, stream=stream) == {
        "message": error.sentence(),
        "type": kind,
        "param": None,
        "code": error.code,
    }


@BOTH
@pytest.mark.parametrize("error", RETRYABLE, ids=repr)
def test_what_a_retry_can_help_fails_the_job_unless_frames_are_out(error: JobError, *, stream: bool) -> None:
    request = openai(stream=stream)
    assert failure(error, request, as_body=True, streaming=False) == {"error": error.sentence()}
    late = failure(error, request, as_body=True, streaming=True)
    assert error_object(late, stream=stream)["type"] == "api_error"


@ANY_ERROR
@pytest.mark.parametrize("streaming", [False, True])
def test_everyone_else_gets_a_failed_job_with_a_sentence(error: JobError, *, streaming: bool) -> None:
    for request in (None, stock(stream=streaming), native(stream=streaming)):
        assert failure(error, request, as_body=True, streaming=streaming) == {"error": error.sentence()}


@ANY_ERROR
@BOTH
def test_a_deployer_can_have_failed_jobs_for_openai_clients_too(error: JobError, *, stream: bool) -> None:
    assert failure(error, openai(stream=stream), as_body=False, streaming=stream) == {"error": error.sentence()}


@BOTH
def test_an_error_with_odd_text_can_be_posted(*, stream: bool) -> None:
    error = ServerRejected(400, 'a "quote"\n\ndata: injected \ud83d é')
    value = failure(error, openai(stream=stream), as_body=True, streaming=False)
    assert value.encode()
    assert error_object(value, stream=stream)["message"] == 'a "quote" data: injected \ud83d é'


# --- Anthropic's API

KINDS = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def anthropic(*, stream: bool) -> Request:
    asked = {"messages": CHAT, "max_tokens": 5, "stream": stream}
    return job.parse({"openai_route": "/v1/messages", "openai_input": asked}, default_model="m")


@BOTH
@pytest.mark.parametrize("status", KINDS)
def test_an_anthropic_client_gets_anthropics_error_object(status: int, *, stream: bool) -> None:
    error = ModelNotFound("it is so") if status == 404 else ServerRejected(status, "it is so")
    value = failure(error, anthropic(stream=stream), as_body=True, streaming=False)
    if stream:
        name, data, *rest = value.split("\n")
        assert (name, rest) == ("event: error", ["", ""])
        value = data.removeprefix("data: ")
    assert json.loads(value) == {"type": "error", "error": {"type": KINDS[status], "message": "it is so"}}


@BOTH
def test_a_retry_and_the_deployers_wish_count_for_anthropics_api_too(*, stream: bool) -> None:
    request = anthropic(stream=stream)
    gone = ServerLost("gone")
    assert failure(gone, request, as_body=True, streaming=False) == {"error": "gone"}
    assert '"api_error"' in failure(gone, request, as_body=True, streaming=True)
    assert failure(JobInvalid("bad"), request, as_body=False, streaming=False) == {"error": "bad"}
