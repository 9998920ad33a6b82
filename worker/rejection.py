"""What the server's refusals mean for whoever asked: which error, and what to do about it; pure."""

from __future__ import annotations

import difflib
import json
import re

from worker.errors import JobError, ModelNotFound, ServerRejected

NAMES_SHOWN = 5
_ASKED = re.compile(r"""model ['"]([^'"]*)['"]""")
# The server's words for something it cannot do, which it calls an error of its own: what to tell the sender.
_TEXT_ONLY = "The model has no vision, or its projector is left out (OLLAMA_SKIP_MMPROJ): send text only"
_NO_EMBEDDINGS = "Ask for an embedding model, such as nomic-embed-text, or serve one"
_SENDERS_FAULT = {
    "image input is not supported": _TEXT_ONLY,
    "does not support multimodal": _TEXT_ONLY,
    "audio input is not supported": _TEXT_ONLY,
}


def rejection(status: int, body: bytes) -> JobError:
    """Return the error that an answer of the server with this HTTP status and body is for whoever asked."""
    message = _words(body.decode("utf-8", errors="replace").strip()) or f"the server answered HTTP {status}"
    if "does not support embeddings" in message:
        # Its own words name a flag of llama-server, which nobody here starts.
        return ServerRejected(400, "the model does not support embeddings", _NO_EMBEDDINGS)
    for words, hint in _SENDERS_FAULT.items():
        if words in message:
            return ServerRejected(400, message, hint)
    if message == "404 page not found":
        return ServerRejected(
            status, "this server does not have the route", "It may be newer than the server's version"
        )
    if status == 404 and "not found" in message:  # noqa: PLR2004 - HTTP's own number
        return ModelNotFound(message, "Ask for a model the worker has: route /api/tags lists them")
    return ServerRejected(status, message)


def asked_for(error: ModelNotFound) -> str:
    """Return the name of the model in the server's words, or nothing where they have none.

    Without the tag the server adds to a name that has none: every model's could seem near for that alone.
    """
    found = _ASKED.search(error.message)
    return found[1].removesuffix(":latest") if found else ""


def names_hint(asked: str, names: list[str]) -> str:
    """Return what to ask for instead of the model `asked`: the nearest of `names`, or the first of all there are."""
    # A name of one model may be written with or without its tag: the best match counts whichever way it comes.
    short = {name.removesuffix(":latest"): name for name in names}
    near = difflib.get_close_matches(asked, [*names, *short], n=NAMES_SHOWN)
    if near:
        return f"Did you mean {' or '.join(dict.fromkeys(short.get(name, name) for name in near))}?"
    more = ", …" if len(names) > NAMES_SHOWN else ""
    return f"This worker has {', '.join(names[:NAMES_SHOWN])}{more}" if names else "This worker has no model yet"


def _words(text: str) -> str:
    """Return the message in an error body; the server may hand on its runner's whole body as its own message."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text[:500]
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    if not isinstance(error, str):
        return text[:500]
    return _words(error) if error.startswith("{") else error.strip()
