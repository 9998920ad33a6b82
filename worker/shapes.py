"""Every shape a job may have: an example that works, and what comes back for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CHAT = [{"role": "user", "content": "Hi"}]
_LINES = "one JSON object a chunk; join their texts"
_EVENTS = "the server's events as text"
_SENTENCE = "FAILED with one sentence"
_OBJECT = "OpenAI's error object; as an event when streamed"


@dataclass(frozen=True)
class JobShape:
    """One row of the README's table. `streams` is empty where `"stream": true` changes nothing."""

    sender: str
    example: dict[str, Any]
    answer: str
    streams: str
    error: str
    note: str = ""

    def streamed(self) -> dict[str, Any]:
        """Return the example as a job that asks for a stream."""
        for name in ("body", "openai_input"):
            if name in self.example:
                return {**self.example, name: {**self.example[name], "stream": True}}
        return {**self.example, "stream": True}


def _openai(path: str, **body: Any) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": body}


SHAPES: dict[str, JobShape] = {
    "chat": JobShape(
        "stock worker, SvenBrnn's: messages",
        {"messages": CHAT, "options": {"temperature": 0}},
        "a list with Ollama's object",
        _LINES,
        _SENTENCE,
        "also `system`, `tools`, `format`, `think`, `template`, `keep_alive`, `logprobs`, `top_logprobs`",
    ),
    "prompt": JobShape(
        "the same: prompt",
        {"prompt": "Why is the sky"},
        "a list with Ollama's object",
        _LINES,
        _SENTENCE,
        "the same, and `images`, `suffix`, `raw`; not `tools`",
    ),
    "sampling": JobShape(
        "worker-vllm's shorthand",
        {"messages": CHAT, "sampling_params": {"temperature": 0, "max_tokens": 100, "repetition_penalty": 1.1}},
        "a list with Ollama's object",
        _LINES,
        _SENTENCE,
        "a parameter without a counterpart is refused by its name; `prompt` goes through the model's template, "
        'unless `"raw": true`',
    ),
    "native": JobShape(
        "any native route",
        {"route": "/api/chat", "body": {"messages": CHAT}},
        "a list with Ollama's object",
        _LINES,
        _SENTENCE,
        "`stream` is off unless asked for; routes that change the store need `WORKER_ALLOW_MODEL_ADMIN`",
    ),
    "embed": JobShape(
        "the same, for embeddings",
        {"route": "/api/embed", "body": {"input": ["a", "b"]}},
        "a list with Ollama's object",
        "",
        _SENTENCE,
    ),
    "openai": JobShape(
        "an OpenAI client",
        _openai("/v1/chat/completions", messages=CHAT),
        "OpenAI's object",
        _EVENTS,
        _OBJECT,
        "also `/v1/completions`, `/v1/responses`, `/v1/embeddings`",
    ),
    "extended": JobShape(
        "the same, with Ollama's fields",
        _openai("/v1/chat/completions", messages=CHAT, options={"top_k": 20}, keep_alive="1h"),
        "OpenAI's object",
        _EVENTS,
        _OBJECT,
        "`options`, `num_ctx`, `keep_alive`; `options` win over OpenAI's fields; also `/v1/completions`",
    ),
    "messages": JobShape(
        "an Anthropic client",
        _openai("/v1/messages", messages=CHAT, max_tokens=100),
        "Anthropic's object",
        _EVENTS,
        "Anthropic's error object; as an event when streamed",
    ),
    "transcription": JobShape(
        "sound to text",
        _openai("/v1/audio/transcriptions", file="UklGRg==", language="en"),
        "OpenAI's object",
        "",
        _OBJECT,
        "`file` in base64: a job carries JSON",
    ),
    "models": JobShape(
        "a list of models",
        _openai("/v1/models"),
        "OpenAI's object",
        "",
        _OBJECT,
        "also `/v1/models/NAME`",
    ),
}
