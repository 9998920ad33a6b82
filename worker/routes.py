"""The server's routes a job may use: method, kind of work, and the framing of a streamed answer."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import Enum

from worker.errors import RouteForbidden


class Framing(Enum):
    """How a streamed answer is cut into frames."""

    JSON = "json"
    NDJSON = "ndjson"
    SSE = "sse"


@dataclass(frozen=True)
class Route:
    """One route of the server.

    `framing` is that of its streamed form; `streams` is the server's default; `form` says that it takes a multipart
    form instead of JSON.
    """

    path: str
    method: str = "POST"
    framing: Framing = Framing.JSON
    streams: bool = False
    admin: bool = False
    needs_model: bool = False
    form: bool = False


def _native(path: str) -> Route:
    return Route(path, framing=Framing.NDJSON, streams=True, needs_model=True)


def _sse(path: str) -> Route:
    return Route(path, framing=Framing.SSE, needs_model=True)


ROUTES: tuple[Route, ...] = (
    _native("/api/generate"),
    _native("/api/chat"),
    Route("/api/embed", needs_model=True),
    Route("/api/embeddings", needs_model=True),
    Route("/api/show", needs_model=True),
    Route("/api/tags", "GET"),
    Route("/api/ps", "GET"),
    Route("/api/version", "GET"),
    _sse("/v1/chat/completions"),
    _sse("/v1/completions"),
    _sse("/v1/responses"),
    _sse("/v1/messages"),
    Route("/v1/embeddings", needs_model=True),
    Route("/v1/audio/transcriptions", needs_model=True, form=True),
    Route("/v1/models", "GET"),
    Route("/api/pull", framing=Framing.NDJSON, streams=True, admin=True),
    Route("/api/push", framing=Framing.NDJSON, streams=True, admin=True),
    Route("/api/create", framing=Framing.NDJSON, streams=True, admin=True),
    Route("/api/copy", admin=True),
    Route("/api/delete", "DELETE", admin=True),
)
_BY_PATH = {route.path: route for route in ROUTES}
_MODEL_PREFIX = "/v1/models/"
# What else the server has, closed to everybody: its files, its account, its maker's cloud.
_CLOSED = {"/api/me", "/api/signout", "/api/status"}
_CLOSED_BELOW = ("/api/blobs/", "/api/experimental/")


def find(path: str, *, allow_admin: bool) -> Route:
    """Return the route for `path`.

    Raises:
        RouteForbidden: it does not exist or is closed to jobs; the message lists what is open.
    """
    route = _BY_PATH.get(path)
    if route is None and path.startswith(_MODEL_PREFIX) and _plain(path[len(_MODEL_PREFIX) :]):
        return Route(path, "GET")
    if route is None:
        open_paths = sorted(r.path for r in ROUTES if allow_admin or not r.admin)
        near = difflib.get_close_matches(path, open_paths, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        told = "is not open to jobs" if exists(path) else f"does not exist{meant}"
        raise RouteForbidden(f"route {path!r:.120} {told}", f"Open routes: {', '.join(open_paths)}")
    if route.admin and not allow_admin:
        raise RouteForbidden(f"route {path!r} changes the model store", "Set WORKER_ALLOW_MODEL_ADMIN=1 to allow it")
    return route


def exists(path: str) -> bool:
    """Return whether the server has a route for `path`, open or not."""
    return path in _BY_PATH or path in _CLOSED or path.startswith(_CLOSED_BELOW)


def _plain(model: str) -> bool:
    """Whether a model name can stand in a path without becoming another path."""
    return bool(model) and ".." not in model and not set(model) & set("?#%\\ ")
