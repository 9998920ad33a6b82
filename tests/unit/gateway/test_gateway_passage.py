from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from yarl import URL

from tests.fakes.api_server import ApiServer
from worker.gateway.passage import BODY_BYTES
from worker.local.process import free_port, wait_for
from worker.routes import ROUTES

if TYPE_CHECKING:
    from tests.conftest import Written

    from .conftest import Front

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
Turn = Callable[..., None]
MakeFront = Callable[..., Any]


async def until(condition: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(wait_for, condition, 60.0)


def cancelled(fake: ApiServer) -> int:
    return int(fake.get("/fake/stats").json()["cancelled"])


async def outcome(front: Front, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with front.call(method, path, **more) as answer:
        return answer.status, await answer.json(content_type=None)


# --- What passes


async def test_an_answer_is_the_servers_byte_for_byte(front: Front, fake: ApiServer) -> None:
    for path, body in (("/api/chat", {**CHAT, "stream": False}), ("/v1/chat/completions", CHAT), ("/api/show", CHAT)):
        own = fake.post(path, body)
        async with front.call("POST", path, json=body) as answer:
            assert (answer.status, answer.headers["Content-Type"]) == (own.status_code, own.headers["Content-Type"])
            assert (await answer.json()).keys() == own.json().keys()
    async with front.call("GET", "/api/tags") as answer:
        assert (await answer.json())["models"][0]["name"] == "m:latest"


@pytest.mark.parametrize(
    ("path", "kind"), [("/api/chat", "application/x-ndjson"), ("/v1/chat/completions", "text/event-stream")]
)
async def test_a_stream_is_handed_on_as_it_comes(front: Front, turn: Turn, path: str, kind: str) -> None:
    turn(tokens=5, hang_at_token=3)
    async with front.call("POST", path, json={**CHAT, "stream": True}) as answer:
        assert answer.headers["Content-Type"] == kind
        assert (answer.headers["X-Accel-Buffering"], answer.headers["Cache-Control"]) == ("no", "no-cache")
        # The server sends three tokens and then nothing: they are here without waiting for more.
        for _ in range(3):
            assert b"content" in await answer.content.readline()
            if kind == "text/event-stream":
                assert await answer.content.readline() == b"\n"


async def test_the_servers_own_refusals_keep_their_status_and_words(front: Front, fake: ApiServer, turn: Turn) -> None:
    for path in ("/api/chat", "/v1/chat/completions"):
        own = fake.post(path, {**CHAT, "think": True, "reasoning_effort": "low"})
        assert own.status_code == 400
        told = await outcome(front, "POST", path, json={**CHAT, "think": True, "reasoning_effort": "low"})
        assert told == (400, own.json())
    turn(refuse_status=503, refuse_error="busy " * 50_000)
    assert await outcome(front, "POST", "/api/chat", json=CHAT) == (503, {"error": "busy " * 50_000})


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_answered_with_the_nearest_names(
    front: Front, turn: Turn, written: Written, *, stream: bool
) -> None:
    turn(models="m,qwen3:8b,qwen3:14b")
    body = {**CHAT, "model": "qwen3:8", "stream": stream}
    meant = "model 'qwen3:8' not found. Did you mean qwen3:8b or qwen3:14b?"
    assert await outcome(front, "POST", "/api/chat", json=body) == (404, {"error": meant})
    error = {"message": meant, "type": "not_found_error", "param": None, "code": "not_found_error"}
    assert await outcome(front, "POST", "/v1/chat/completions", json=body) == (404, {"error": error})
    status, told = await outcome(front, "GET", "/v1/models/zzzz")
    assert (status, told["error"]["message"]) == (
        404,
        "model 'zzzz:latest' not found. This worker has m:latest, qwen3:14b, qwen3:8b",
    )
    assert [record["status"] for record in written.all("job.failed")] == [404, 404]


async def test_an_image_for_a_model_that_cannot_see_is_the_senders_fault_and_names_the_setting(front: Front) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    for path, message in (
        ("/api/chat", {"role": "user", "content": "hi", "images": ["AA=="]}),
        ("/v1/chat/completions", {"role": "user", "content": [part]}),
    ):
        status, told = await outcome(front, "POST", path, json={**CHAT, "messages": [message]})
        assert status == 400
        assert "OLLAMA_SKIP_MMPROJ" in str(told)


async def test_anthropics_messages_whole_and_streamed(front: Front, written: Written) -> None:
    body = {**CHAT, "max_tokens": 100}
    status, told = await outcome(front, "POST", "/v1/messages", json=body)
    assert (status, told["type"], told["stop_reason"]) == (200, "message", "end_turn")
    (block,) = told["content"]
    async with front.call("POST", "/v1/messages", json={**body, "stream": True}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        events = [event for event in (await answer.text()).split("\n\n") if event]
    values = [json.loads(event.partition("\ndata: ")[2]) for event in events]
    assert [event.partition("\n")[0] for event in events] == [f"event: {value['type']}" for value in values]
    assert "".join(v["delta"]["text"] for v in values if v["type"] == "content_block_delta") == block["text"]
    assert values[-1] == {"type": "message_stop"}
    await until(lambda: len(written.all("job.finished")) == 2)
    assert {record["output_tokens"] for record in written.all("job.finished")} == {told["usage"]["output_tokens"]}
    status, told = await outcome(front, "POST", "/v1/messages", json={**body, "model": "mm"})
    assert (status, told["error"]["type"]) == (404, "not_found_error")
    assert told["error"]["message"].endswith("Did you mean m:latest?")


async def test_a_form_with_sound(front: Front, turn: Turn, fake: ApiServer) -> None:
    turn(models="m=completion+audio,deaf")

    def form(model: str) -> aiohttp.FormData:
        data = aiohttp.FormData({"model": model, "language": "en"})
        data.add_field("file", b"RIFF" * 100_000, filename="a.wav", content_type="audio/wav")
        return data

    status, told = await outcome(front, "POST", "/v1/audio/transcriptions", data=form("m"))
    assert (status, list(told)) == (200, ["text"])
    sent = fake.get("/fake/stats").json()["last"]["/v1/audio/transcriptions"]
    assert sent == {"model": "m", "language": "en", "filename": "a.wav", "file_bytes": 400_000}
    status, told = await outcome(front, "POST", "/v1/audio/transcriptions", data=form("deaf"))
    assert status == 400
    assert "OLLAMA_SKIP_MMPROJ" in told["error"]["message"]


async def test_a_body_is_handed_on_whatever_it_is(front: Front, fake: ApiServer) -> None:
    for data in (b"", b"{", b"\xff\xfe"):
        own = fake.post("/api/chat", data=data)
        assert await outcome(front, "POST", "/api/chat", data=data) == (own.status_code, own.json())


async def test_what_happened_is_told_as_for_a_job(front: Front, written: Written) -> None:
    async with front.call(
        "POST", "/v1/chat/completions", json={**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    ) as answer:
        text = await answer.text()
    await until(lambda: bool(written.all("job.finished")))
    assert [record["event"] for record in written.records] == [
        "job.accepted",
        "job.opened",
        "job.token_received",
        "job.chunk_posted",
        "job.finished",
    ]
    assert len({record["job_id"] for record in written.records}) == 1
    finished = written.one("job.finished")
    assert finished["body_bytes"] == len(text.encode())
    assert finished["output_tokens"] == json.loads(text.split("\n\n")[-3][6:])["usage"]["completion_tokens"]


async def test_questions_about_the_worker_are_no_jobs(front: Front, written: Written) -> None:
    for path in ("/api/tags", "/api/ps", "/api/version", "/v1/models", "/v1/models/m", "/ping"):
        async with front.call("GET", path) as answer:
            assert answer.status == 200
    assert written.records == []


# --- What does not


@pytest.mark.parametrize("route", [route for route in ROUTES if route.admin], ids=lambda route: route.path)
async def test_what_changes_the_store_is_closed_unless_opened(make_front: MakeFront, route: Any) -> None:
    status, body = await outcome(await make_front(), route.method, route.path, json={"model": "x"})
    assert status == 403
    assert "WORKER_ALLOW_MODEL_ADMIN" in body["error"]
    async with (await make_front(allow_admin=True)).call(route.method, route.path, json={"model": "x"}) as answer:
        assert answer.status != 403


@pytest.mark.parametrize("path", ["/api/blobs/sha256:0", "/api/me", "/api/experimental/web_search"])
async def test_what_the_server_has_and_is_not_listed_is_closed(front: Front, path: str) -> None:
    status, body = await outcome(front, "GET", path)
    assert status == 403
    assert "is not open to jobs" in body["error"]


@pytest.mark.parametrize(
    "path", ["/metrics/", "/fake/stats", "/api/../fake/stats", "/api/chat/", "/nosuch", "/api/menu", "/v2/x/runsync"]
)
async def test_what_nobody_has_is_not_found(front: Front, path: str) -> None:
    status, body = await outcome(front, "GET", path)
    assert status == 404
    assert "does not exist" in str(body["error"])
    assert "Open routes: /api/chat" in str(body["error"])


async def test_the_root_says_what_ollamas_own_clients_look_for(front: Front) -> None:
    async with front.call("GET", "/") as answer:
        assert (answer.status, await answer.text()) == (200, "Ollama is running")
    async with front.call("HEAD", "/") as answer:
        assert (answer.status, await answer.text()) == (200, "")
    async with front.call("POST", "/") as answer:
        assert answer.status == 404


@pytest.mark.parametrize(
    "path", ["/v1/models/..%2Ffake%2Fstats", "/v1/models/%2e%2e/x", "/v1/models/a%3Fb", "/v1/models/%0a%20"]
)
async def test_an_escape_does_not_become_another_path(front: Front, fake: ApiServer, path: str) -> None:
    before = fake.get("/fake/stats").json()["requests"]
    url = URL(f"{front.session._base_url}".rstrip("/") + path, encoded=True)
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status in {403, 404}
    assert fake.get("/fake/stats").json()["requests"] == before


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/chat"), ("POST", "/api/tags"), ("DELETE", "/v1/models")])
async def test_a_wrong_method_is_said(front: Front, method: str, path: str) -> None:
    status, body = await outcome(front, method, path)
    assert status == 405
    assert f"not {method}" in json.dumps(body)


async def in_pieces(size_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(size_bytes // 100_000):
        yield b"x" * 100_000


@pytest.mark.parametrize("chunked", [False, True])
async def test_too_large_a_body_is_refused(front: Front, *, chunked: bool) -> None:
    data = in_pieces(BODY_BYTES + 100_000) if chunked else io.BytesIO(b"x" * (BODY_BYTES + 1))
    # The answer may come, and the connection go, before everything was sent.
    with contextlib.suppress(aiohttp.ClientConnectionError):
        status, body = await outcome(front, "POST", "/v1/messages", data=data)
        assert status == 413
        assert body["error"]["type"] == "request_too_large"


async def test_as_large_a_body_as_may_be_is_handed_on(front: Front) -> None:
    body = json.dumps({**CHAT, "pad": "x" * (BODY_BYTES - 1000), "stream": False}).encode()
    assert (await outcome(front, "POST", "/api/chat", data=io.BytesIO(body)))[0] == 200


async def test_a_key_is_asked_for_except_by_health(make_front: MakeFront, written: Written) -> None:
    front = await make_front(key="k")
    async with front.call("POST", "/v1/chat/completions", json=CHAT) as answer:
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "key" in (await answer.json())["error"]["message"]
    assert written.records == []
    assert (await outcome(front, "POST", "/v1/chat/completions", json=CHAT, headers={"Authorization": "Bearer k"}))[
        0
    ] == 200
    status, body = await outcome(front, "POST", "/v1/messages", json=CHAT, headers={"X-Api-Key": "l"})
    assert (status, body["error"]["type"]) == (401, "authentication_error")
    async with front.call("GET", "/ping") as answer:
        assert answer.status == 200


async def test_pages_may_call_where_that_was_allowed(make_front: MakeFront, front: Front) -> None:
    page = {"Origin": "https://a.example"}
    opened = await make_front(origins="https://a.example", key="k")
    async with opened.call("OPTIONS", "/api/chat", headers=page) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (204, "https://a.example")
    async with opened.call("POST", "/api/chat", json=CHAT, headers=page) as answer:
        # A page can read why it was refused.
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, "https://a.example")
    async with front.call("OPTIONS", "/api/chat", headers=page) as answer:
        assert (answer.status, "Access-Control-Allow-Origin" in answer.headers) == (405, False)
    async with front.call("GET", "/api/tags", headers=page) as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers


# --- Ends


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
async def test_a_client_that_hangs_up_stops_generation(
    front: Front, turn: Turn, fake: ApiServer, written: Written, path: str
) -> None:
    turn(tokens=100_000, tokens_per_s=20)
    before = cancelled(fake)
    async with front.call("POST", path, json={**CHAT, "stream": True}) as answer:
        await answer.content.readline()
        answer.close()
    await until(lambda: cancelled(fake) == before + 1)
    await until(lambda: bool(written.all("job.cancelled")))
    assert not written.all("job.finished")


async def test_a_client_that_hangs_up_before_the_first_token_stops_generation(
    front: Front, turn: Turn, fake: ApiServer
) -> None:
    turn(first_token_delay_s=60)
    before = cancelled(fake)
    with pytest.raises(asyncio.TimeoutError):
        await outcome(front, "POST", "/api/chat", json=CHAT, timeout=aiohttp.ClientTimeout(total=0.5))
    await until(lambda: cancelled(fake) == before + 1)


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/api/chat", b'\n{"error": "the connection to the server was lost'),
        ("/v1/chat/completions", b'\n\ndata: {"error": {"message": "the connection to the server was lost'),
    ],
)
async def test_a_stream_that_breaks_off_says_so(
    front: Front, turn: Turn, written: Written, path: str, last: bytes
) -> None:
    turn(tokens=9, drop_at_token=3, tokens_per_s=50)
    async with front.call("POST", path, json={**CHAT, "stream": True}) as answer:
        text = await answer.read()
    assert text.count(b'"content"') == 3
    assert last in text
    await until(lambda: bool(written.all("job.failed")))
    assert written.one("job.failed")["code"] == "server_lost"


async def test_a_server_that_is_silent_or_gone_is_an_error_of_its_own(make_front: MakeFront, turn: Turn) -> None:
    turn(hang_at_token=0)
    front = await make_front(stall_s=0.3)
    status, body = await outcome(front, "POST", "/api/chat", json={**CHAT, "stream": True})
    assert (status, body["error"].partition(".")[0]) == (200, "the server sent nothing for 0")
    gone = await make_front(url=f"http://127.0.0.1:{free_port()}")
    assert (await outcome(gone, "POST", "/api/chat", json=CHAT))[0] == 502
    assert (await outcome(gone, "GET", "/api/tags"))[0] == 502


async def test_while_draining_old_requests_finish_and_new_ones_are_refused(front: Front, turn: Turn) -> None:
    turn(tokens=30, tokens_per_s=30)
    async with front.call("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        await answer.content.readline()
        front.health.stop()
        draining = asyncio.create_task(front.passage.drain(60.0))
        async with front.call("POST", "/v1/chat/completions", json=CHAT) as other:
            assert (other.status, other.headers["Retry-After"]) == (503, "1")
        async with front.call("GET", "/ping") as other:
            assert other.status == 503
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        await draining


async def test_what_takes_longer_than_the_drain_is_cut_off(front: Front, turn: Turn, fake: ApiServer) -> None:
    turn(tokens=100_000, tokens_per_s=20)
    before = cancelled(fake)
    async with front.call("POST", "/api/chat", json=CHAT) as answer:
        await answer.content.readline()
        await front.passage.drain(0.2)
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    await until(lambda: cancelled(fake) == before + 1)
    await front.passage.drain(60.0)


async def test_a_slow_reader_slows_the_server_down(front: Front, turn: Turn, fake: ApiServer) -> None:
    total = 200_000
    turn(tokens=total)
    before = fake.get("/fake/stats").json()["tokens"]
    async with front.call("POST", "/api/chat", json=CHAT):
        seen = [-1, 0]

        def is_still() -> bool:
            seen.append(fake.get("/fake/stats").json()["tokens"])
            return seen[-1] == seen[-2] == seen[-3] > before

        await until(is_still)
        assert seen[-1] - before < total
