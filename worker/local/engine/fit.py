"""What of a prompt or a conversation goes into the model's context, cut as Ollama cuts it."""

from __future__ import annotations

from typing import Any

from worker.local.engine import prompt
from worker.local.engine.reply import ApiError
from worker.local.engine.runner import Runner

TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the "
    "context length in settings, or use a model with a longer context length"
)


async def shortened(runner: Runner, text: str, keep: int) -> str | list[int]:
    """Return `text`, or, when it is too long, the tokens of its first `keep` and of its end.

    Half of the context stays free for the answer. Raises ApiError 400 when shifting the context is not allowed.
    """
    context = runner.spec.options.context
    # A token is at least one character, so short texts need no counting.
    if len(text) < context:
        return text
    tokens = await prompt.tokens(runner, text)
    if len(tokens) < context:
        return text
    if not runner.spec.options.shift:
        raise ApiError(400, TOO_LONG)
    kept = min(max(keep, 0), context - 1)
    limit = context - max((context - kept) // 2, 1)
    return tokens[:kept] + tokens[len(tokens) - limit + kept :]


async def recent(runner: Runner, request: dict[str, Any]) -> dict[str, Any]:
    """Return the chat `request` without its oldest messages as far as they do not fit; system messages stay."""
    messages = request["messages"]
    context = runner.spec.options.context
    if sum(len(str(message["content"])) for message in messages) < context // 2:
        return request
    for first in range(len(messages)):
        systems = [message for message in messages[:first] if message["role"] == "system"]
        shorter = {**request, "messages": systems + messages[first:]}
        rendered = str((await runner.call("/apply-template", shorter))["prompt"])
        if len(await prompt.tokens(runner, rendered)) <= context:
            return shorter
    return shorter
