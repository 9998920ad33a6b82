"""Chat templates that know tools and thinking, for a model whose own does not."""

from __future__ import annotations

import json
from typing import Any

TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n<tools>' }}"
    "{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- '\\n</tools>\\nFor each call return a json object with name and arguments within <tool_call></tool_call>:\\n"
    '<tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n</tool_call><|im_end|>\\n\' }}{%- endif %}'
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' and message.tool_calls %}{{- '<|im_start|>assistant' }}"
    "{%- for tool_call in message.tool_calls %}"
    '{{- \'\\n<tool_call>\\n{"name": "\' + tool_call.function.name + \'", "arguments": \' }}'
    "{{- tool_call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# What matters here is the shape: llama.cpp finds out from it where thoughts begin and end.
THINKING = (
    "{%- for message in messages %}{%- if message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if message.reasoning_content %}"
    "{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- message.content + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else %}{{- '<think>\\n' }}{%- endif %}{%- endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def conversation(*, openai: bool) -> list[dict[str, Any]]:
    """Return messages in which a call was made twice and a third is due: even a tiny model then makes it."""
    messages: list[dict[str, Any]] = []
    for city in ("Paris", "Rome"):
        arguments: Any = {"city": city}
        call: dict[str, Any] = {"function": {"name": "get_weather", "arguments": arguments}}
        if openai:
            call = {"id": city, "type": "function", "function": call["function"] | {"arguments": json.dumps(arguments)}}
        messages += [
            {"role": "user", "content": f"Weather in {city}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
    return [*messages, {"role": "user", "content": "Weather in Oslo?"}]
