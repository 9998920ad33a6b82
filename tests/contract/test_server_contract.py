"""Ollama's API as this project relies on it: what is there, which models, and how they come and go.

Every statement holds for the local engine, for the fake, and for a real Ollama when OLLAMA_BIN names one.
"""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timedelta, timezone

import ollama
import pytest
import requests

from tests.fakes.api_server import KINDS, ApiServer, wait_for

NATIVE_POSTS = ["/api/chat", "/api/generate", "/api/embed", "/api/show", "/api/pull"]
OPENAI_POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
HI = [{"role": "user", "content": "hi"}]


def refusal(response: requests.Response) -> str:
    """Return the text of a native error, whose body holds nothing else."""
    body = response.json()
    assert list(body) == ["error"]
    return str(body["error"])


@pytest.mark.ollama
def test_the_contract_is_held_against_a_real_ollama() -> None:
    if not os.environ.get("OLLAMA_BIN"):
        pytest.skip("set OLLAMA_BIN to a real ollama: only it can show that engine and fake are true to it")
    done = subprocess.run([os.environ["OLLAMA_BIN"], "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(KINDS) == 3


def test_the_root_says_that_it_runs(api: ApiServer) -> None:
    response = api.get("/")
    assert (response.status_code, response.text) == (200, "Ollama is running")


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags"])
def test_head_is_answered_without_a_body(api: ApiServer, path: str) -> None:
    response = requests.head(api.url + path, timeout=30)
    assert (response.status_code, response.content) == (200, b"")


def test_the_version_is_a_text(api: ApiServer) -> None:
    response = api.get("/api/version")
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    assert response.json()["version"][0].isdecimal()


@pytest.mark.parametrize("path", ["/api/nothing", "/v2/models", "/metrics"])
def test_an_unknown_path_is_404(api: ApiServer, path: str) -> None:
    assert api.get(path).status_code == 404


@pytest.mark.parametrize("path", NATIVE_POSTS + OPENAI_POSTS)
def test_a_post_route_refuses_get_with_405(api: ApiServer, path: str) -> None:
    assert api.get(path).status_code == 405


@pytest.mark.parametrize("path", ["/api/ps", "/api/tags", "/v1/models"])
def test_a_get_route_refuses_post_with_405(api: ApiServer, path: str) -> None:
    assert api.post(path).status_code == 405


def test_tags_lists_what_the_store_holds(api: ApiServer) -> None:
    models = {model["name"]: model for model in api.get("/api/tags").json()["models"]}
    assert {"smol:latest", "tools:latest", "embed:latest"} <= set(models)
    smol = models["smol:latest"]
    assert smol["model"] == "smol:latest"
    assert smol["size"] > 0
    assert len(smol["digest"]) == 64
    assert smol["details"]["format"] == "gguf"
    assert smol["capabilities"] == ["completion"]
    # The list does not look at chat templates; /api/show does.
    assert models["tools:latest"]["capabilities"] == ["completion"]
    assert models["embed:latest"]["capabilities"] == ["embedding"]


def test_show_describes_a_model(api: ApiServer) -> None:
    shown = api.post("/api/show", {"model": "smol"}).json()
    assert shown["capabilities"] == ["completion"]
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] > 0
    assert shown["model_info"]["tokenizer.ggml.tokens"] is None
    assert {"parent_model", "format", "family", "families", "parameter_size", "quantization_level"} <= set(
        shown["details"]
    )


def test_show_knows_that_a_model_can_call_tools(api: ApiServer) -> None:
    assert set(api.post("/api/show", {"model": "tools"}).json()["capabilities"]) == {"completion", "tools"}


def test_show_takes_the_old_field_name(api: ApiServer) -> None:
    assert api.post("/api/show", {"name": "smol"}).status_code == 200


def test_openai_lists_and_describes_models(api: ApiServer) -> None:
    listed = api.get("/v1/models").json()
    assert listed["object"] == "list"
    assert "smol:latest" in {model["id"] for model in listed["data"]}
    one = api.get("/v1/models/smol:latest").json()
    assert one["id"] == "smol:latest"
    assert one["object"] == "model"
    assert one["owned_by"] == "library"
    assert isinstance(one["created"], int)


def test_an_empty_prompt_loads_the_model_and_ps_shows_it(api: ApiServer) -> None:
    response = api.post("/api/generate", {"model": "smol"})
    # One object, although streaming was not declined: this is how a preload is told from an answer.
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    body = response.json()
    assert (body["model"], body["response"], body["done"], body["done_reason"]) == ("smol", "", True, "load")
    (loaded,) = [model for model in api.get("/api/ps").json()["models"] if model["name"] == "smol:latest"]
    assert loaded["model"] == "smol:latest"
    assert loaded["size"] > 0
    assert 0 <= loaded["size_vram"] <= loaded["size"]
    assert loaded["context_length"] > 0
    # OLLAMA_KEEP_ALIVE=-1 is for ever, which Go's arithmetic turns into centuries.
    assert datetime.fromisoformat(loaded["expires_at"][:19] + "+00:00") > datetime.now(timezone.utc) + timedelta(
        days=365
    )


def test_no_messages_load_the_model_too(api: ApiServer) -> None:
    body = api.post("/api/chat", {"model": "smol"}).json()
    assert body["message"] == {"role": "assistant", "content": ""}
    assert body["done_reason"] == "load"


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_keep_alive_zero_unloads(api: ApiServer, path: str) -> None:
    api.post("/api/generate", {"model": "smol"})
    body = api.post(path, {"model": "smol", "keep_alive": 0}).json()
    assert (body["done"], body["done_reason"]) == (True, "unload")
    assert wait_for(lambda: "smol:latest" not in {model["name"] for model in api.get("/api/ps").json()["models"]})


def test_a_pull_that_fails_says_so_in_its_last_line(api: ApiServer) -> None:
    # Nobody listens on port 9 of this machine, so no registry is asked.
    response = api.post("/api/pull", {"model": "127.0.0.1:9/nobody/nothing"})
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/x-ndjson"
    first, *_, last = response.text.strip().split("\n")
    assert first == '{"status":"pulling manifest"}'
    assert last.startswith('{"error":"pull model manifest: ')


def test_a_pull_that_is_not_streamed_fails_with_500(api: ApiServer) -> None:
    response = api.post("/api/pull", {"model": "127.0.0.1:9/nobody/nothing", "stream": False})
    assert response.status_code == 500
    assert refusal(response).startswith("pull model manifest: ")


def test_ollamas_own_client_understands_lists_and_refusals(api: ApiServer) -> None:
    with ollama.Client(host=api.url) as client:
        assert "smol:latest" in {model.model for model in client.list().models}
        assert client.show("tools").capabilities is not None
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat(model="absent", messages=HI)
    assert (caught.value.status_code, caught.value.error) == (404, "model 'absent' not found")
