from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import routes
from worker.errors import RouteForbidden
from worker.routes import ROUTES, Framing, Route

OPEN = [route for route in ROUTES if not route.admin]
ADMIN = [route for route in ROUTES if route.admin]


def forbidden(path: str, *, allow_admin: bool = False) -> RouteForbidden:
    with pytest.raises(RouteForbidden) as caught:
        routes.find(path, allow_admin=allow_admin)
    return caught.value


@pytest.mark.parametrize("route", OPEN, ids=lambda route: route.path)
@pytest.mark.parametrize("allow_admin", [False, True])
def test_an_open_route_is_found_by_its_path(route: Route, *, allow_admin: bool) -> None:
    assert routes.find(route.path, allow_admin=allow_admin) is route


@pytest.mark.parametrize("route", ADMIN, ids=lambda route: route.path)
def test_a_route_that_changes_the_store_has_to_be_opened(route: Route) -> None:
    error = forbidden(route.path)
    assert "WORKER_ALLOW_MODEL_ADMIN=1" in error.hint
    assert route.path in error.message
    assert routes.find(route.path, allow_admin=True) is route


def test_what_changes_the_store_is_closed() -> None:
    assert {route.path.rpartition("/")[2] for route in ADMIN} == {"pull", "push", "create", "copy", "delete"}


def test_a_path_is_one_route() -> None:
    assert len({route.path for route in ROUTES}) == len(ROUTES)
    assert all(re.fullmatch(r"/(api|v1)(/[a-z]+)+", route.path) for route in ROUTES)


def test_every_post_an_open_route_takes_is_about_a_model() -> None:
    assert {route.path for route in OPEN if route.needs_model} == {r.path for r in OPEN if r.method == "POST"}


def test_what_a_route_says_about_itself_fits_together() -> None:
    for route in ROUTES:
        # The server streams on its own only where it speaks NDJSON; OpenAI's routes wait for "stream": true.
        assert route.streams == (route.framing is Framing.NDJSON)
        assert route.path.startswith("/v1/") or route.framing is not Framing.SSE
        assert route.method == "POST" or not (route.needs_model or route.streams)
        assert route.admin or route.method in {"GET", "POST"}


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/api/generat", "/api/generate"),
        ("/api/chat/", "/api/chat"),
        ("/v1/embedding", "/v1/embeddings"),
    ],
)
def test_a_typing_error_is_answered_with_what_was_meant(path: str, meant: str) -> None:
    error = forbidden(path)
    assert f"did you mean {meant}?" in error.message
    assert repr(path) in error.message


@pytest.mark.parametrize("path", ["/v1/audio/speech", "", "/", "chat", "/API/CHAT", "*", "/api/menu"])
def test_what_is_not_listed_does_not_exist(path: str) -> None:
    assert f"{path!r} does not exist" in forbidden(path, allow_admin=True).message
    assert not routes.exists(path)


@pytest.mark.parametrize("path", ["/api/blobs/sha256:0", "/api/me", "/api/experimental/web_fetch"])
def test_what_the_server_keeps_for_itself_is_closed(path: str) -> None:
    assert f"{path!r} is not open to jobs" in forbidden(path, allow_admin=True).message
    assert routes.exists(path)


def test_the_hint_lists_what_is_open_and_no_more() -> None:
    for allow_admin, listed in ((False, OPEN), (True, ROUTES)):
        told = forbidden("/nowhere", allow_admin=allow_admin).hint.removeprefix("Open routes: ").split(", ")
        assert told == sorted(route.path for route in listed)


def test_a_long_path_is_cut_in_the_message() -> None:
    assert len(forbidden("/" + "x" * 5000).message) < 300


@pytest.mark.parametrize("model", ["llama3.2:3b", "hf.co/org/repo:Q4_K_M", "名前", "a&b=c"])
def test_one_model_can_be_asked_for(model: str) -> None:
    assert routes.find(f"/v1/models/{model}", allow_admin=False) == Route(f"/v1/models/{model}", "GET")


@pytest.mark.parametrize(
    "model", ["", "..", "../../api/delete", "a/../b", "a?b", "a#b", "a%2e%2e", "a\\b", "a b", "%2E%2E/api/tags"]
)
def test_a_models_name_cannot_become_another_path(model: str) -> None:
    assert "does not exist" in forbidden(f"/v1/models/{model}", allow_admin=True).message


@settings(deadline=None, database=None)
@given(path=st.text(st.sampled_from("/v1models.?#%\\ ab"), max_size=12).map("/v1/models/{}".format) | st.text())
def test_any_path_is_a_route_or_forbidden(path: str) -> None:
    try:
        route = routes.find(path, allow_admin=False)
    except RouteForbidden:
        return
    assert route.path == path
    assert not route.admin
    assert route in ROUTES or (route.method == "GET" and re.fullmatch(r"/v1/models/[^?#%\\ ]+", path))
    assert ".." not in path
