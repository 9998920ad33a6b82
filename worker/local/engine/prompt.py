"""What llama-server is sent: messages, prompts, formats and options in its own words."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from worker.local.engine.body import Body
from worker.local.engine.options import Options
from worker.local.engine.reply import ApiError
from worker.local.engine.runner import Runner

# What the first bytes of a base64 text say about the image in it.
IMAGE_TYPES = {"iVBOR": "image/png", "/9j/": "image/jpeg", "R0lG": "image/gif", "UklG": "image/webp"}
# Any JSON object; white space is bounded, or a small model would write nothing else.
JSON_GRAMMAR = r"""
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? ws "}"
pair ::= string ws ":" ws value
array ::= "[" ws (value ("," ws value)*)? ws "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})?
ws ::= [ \n]{0,8}
"""


def chat_request(body: Body, options: Options, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the body of /v1/chat/completions for Ollama-style `messages`."""
    request = {**options.sampling, "messages": [_message(message) for message in messages], **_thinking(body)}
    if tools := body.get("tools", []):
        request["tools"] = tools
    if body.flag("logprobs"):
        request |= {"logprobs": True, "top_logprobs": max(1, body.get("top_logprobs", 0))}
    if body.format == "json":
        request["response_format"] = {"type": "json_object"}
    elif body.format is not None:
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": "schema", "schema": body.format}}
    return request


def completion_request(body: Body, options: Options, prompt: str) -> dict[str, Any]:
    """Return the body of /completion for a prompt that is already text."""
    request = {**options.sampling, "prompt": prompt}
    if images := body.get("images", []):
        request["prompt"] = {"prompt_string": prompt, "multimodal_data": [_checked(image) for image in images]}
    if body.flag("logprobs"):
        request["n_probs"] = max(1, body.get("top_logprobs", 0))
    if body.format == "json":
        request["grammar"] = JSON_GRAMMAR
    elif body.format is not None:
        request["json_schema"] = body.format
    return request


async def rendered(runner: Runner, body: Body, system: str, examples: list[dict[str, Any]]) -> str:
    """Return the prompt of a generate request in the model's chat format, as llama.cpp renders it.

    A Go template of the store cannot be run here: the GGUF's own template takes its place.
    """
    first = [{"role": "system", "content": body.text("system") or system}]
    messages = (first if first[0]["content"] else []) + examples
    messages.append({"role": "user", "content": body.text("prompt")})
    request = {"messages": [_message(message) for message in messages], **_thinking(body)}
    answer = await runner.call("/apply-template", request)
    return await _before(runner, body) + str(answer["prompt"])


async def tokens(runner: Runner, text: str) -> list[int]:
    """Return `text` in the model's tokens."""
    answer = await runner.call("/tokenize", {"content": text, "add_special": False, "parse_special": True})
    return list(answer["tokens"])


async def _before(runner: Runner, body: Body) -> str:
    context = body.get("context", [])
    if not context:
        return ""
    return str((await runner.call("/detokenize", {"tokens": context}))["content"])


def _thinking(body: Body) -> dict[str, Any]:
    if body.think is None:
        return {}
    effort = {"reasoning_effort": body.think} if isinstance(body.think, str) else {}
    return {"chat_template_kwargs": {"enable_thinking": bool(body.think), **effort}}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    result: dict[str, Any] = {"role": message.get("role", ""), "content": content}
    if images := message.get("images"):
        text = [{"type": "text", "text": content}] if content else []
        result["content"] = text + [
            {"type": "image_url", "image_url": {"url": _data_url(_checked(image))}} for image in images
        ]
    if calls := message.get("tool_calls"):
        result["tool_calls"] = [_tool_call(call) for call in calls]
    if message.get("tool_name"):
        result["name"] = message["tool_name"]
    if message.get("tool_call_id"):
        result["tool_call_id"] = message["tool_call_id"]
    return result


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function.get("arguments") or {})
    return {
        "id": call.get("id", ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _checked(image: Any) -> str:
    try:
        base64.b64decode(image, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ApiError(400, "illegal base64 data at input byte 0") from error
    return str(image)


def _data_url(image: str) -> str:
    kind = next((kind for start, kind in IMAGE_TYPES.items() if image.startswith(start)), "image/jpeg")
    return f"data:{kind};base64,{image}"
