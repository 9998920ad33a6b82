"""The Hub's deploy form in `.runpod/hub.json`: one input for every variable a user may set, made from the code."""

from __future__ import annotations

import json
from typing import Any

from worker import environment
from worker.config import Config, variables

# Where things are inside the image is not for the person who deploys it to say.
_INTERNAL = {"host", "server_command", "volume"}
_FIRST = {"model", "hf_model", "hf_quantization", "num_parallel"}  # the rest is folded away as advanced
# The form offers the repositories of the Hub for this type, and the platform has them there before the worker starts.
_TYPES = {"hf_model": "huggingface", "integer": "number", "array": "string"}
_NAMED = {
    "model_list": "Several models",
    "hf_model": "Hugging Face model",
    "hub_transfer": "Transfer of the Hub",
    "models": "Model store",
    "num_parallel": "Parallel requests",
    "max_concurrency": "Jobs at once",
    "port_health": "Health port",
    "port_metrics": "Metrics port",
}
_SPELLED = {
    "api": "API",
    "cors": "CORS",
    "cpu": "CPU",
    "hf": "Hugging Face",
    "aws": "AWS",
    "id": "ID",
    "jit": "JIT",
    "openai": "OpenAI",
    "noprune": "no prune",
    "s": "(seconds)",
    "ms": "(milliseconds)",
}


def refreshed(text: str) -> str:
    """Return hub.json's `text` with its list of variables made anew."""
    document = json.loads(text)
    document["config"]["env"] = inputs()
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def inputs() -> list[dict[str, Any]]:
    """Return the form's inputs, the worker's own variables before the server's."""
    schemas = Config.model_json_schema(by_alias=False)["properties"]
    names = variables()
    offered = [
        {"key": names[field][0], "input": _input(field, schema)}
        for field, schema in schemas.items()
        if field not in _INTERNAL and not schema["description"].startswith("Set by")
    ]
    known = {name for aliases in names.values() for name in aliases}
    server = [setting for setting in environment.settings({}) if setting.name not in known]
    return offered + [
        {
            "key": setting.name,
            "input": {
                "type": "string",
                "name": _label(setting.name.partition("_")[2].lower()),
                "description": f"{setting.reason[:1].upper()}{setting.reason[1:]}.",
                "default": setting.value,
                "advanced": True,
            },
        }
        for setting in server
    ]


def _input(field: str, schema: dict[str, Any]) -> dict[str, Any]:
    kind = next((part for part in schema.get("anyOf", []) if part["type"] != "null"), schema)
    made: dict[str, Any] = {
        "type": _TYPES.get(field, _TYPES.get(kind["type"], kind["type"])),
        "name": _label(field),
        "description": schema["description"].replace("`", ""),
    }
    default = schema.get("default")
    if default not in (None, []):
        made["default"] = int(default) if isinstance(default, float) and default.is_integer() else default
    if "enum" in kind:
        made["options"] = [{"label": value, "value": value} for value in kind["enum"]]
    if kind["type"] == "boolean":
        made |= {"trueValue": "1", "falseValue": "0"}
    return made if field in _FIRST else made | {"advanced": True}


def _label(name: str) -> str:
    if name in _NAMED:
        return _NAMED[name]
    words = [_SPELLED.get(word, word) for word in name.split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])
