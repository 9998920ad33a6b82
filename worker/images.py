"""Images in a request, which a server without its projector cannot read; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from worker.errors import JobInvalid

SETTING = "OLLAMA_SKIP_MMPROJ"
# As OpenAI's chat, its responses and Anthropic's messages call them; sound goes through the projector too.
_PARTS = {"image_url", "input_image", "image", "input_audio"}


def refuse(body: Mapping[str, Any]) -> None:
    """Raise JobInvalid if `body` holds an image or sound; to be called where the projector was left out."""
    # A file is what there is to transcribe.
    if body.get("file") or any(_holds(message) for message in _messages(body)):
        raise JobInvalid(
            f"this worker left out the model's projector ({SETTING}): it reads no images and no sound",
            f"Send text only, or unset {SETTING} on the endpoint",
        )


def _messages(body: Mapping[str, Any]) -> Iterable[Any]:
    yield body
    for name in ("messages", "input"):
        if isinstance(body.get(name), list):
            yield from body[name]


def _holds(message: Any, levels: int = 2) -> bool:
    if not isinstance(message, Mapping):
        return False
    if message.get("images") or message.get("type") in _PARTS:
        return True
    parts = message.get("content")
    # Anthropic's tool results have parts of their own; nothing goes deeper.
    return levels > 0 and isinstance(parts, list) and any(_holds(part, levels - 1) for part in parts)
