"""Job inputs as hypothesis makes them: right ones, nearly right ones, and anything JSON can say."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

from hypothesis import strategies as st

from worker import shapes
from worker.fields import FIELDS
from worker.routes import ROUTES
from worker.sampling import NEUTRAL, SAME

# Lone surrogates too: a client in another language sends them without noticing.
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
# Stands for a value deeper than any sender means it: `deepened` puts that in, hypothesis could not print it.
DEEP = st.just("<deep>")
LEVELS = st.integers(1, 3000)
PATHS = st.sampled_from([route.path for route in ROUTES] + ["/v1/models/m", "/nowhere", "x"])
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "input_audio", "image"])}, optional={})
    | st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
    | st.builds(
        lambda url: {"type": "image_url", "image_url": {"url": url}}, st.just("data:image/png;base64,AA==") | TEXT
    )
    | JSON,
    max_size=2,
)
CALLS = st.lists(
    st.builds(
        lambda name, text: {"id": name, "function": {"name": name, "arguments": text}}, TEXT, TEXT | st.just("{}")
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES, "content": TEXT | PARTS}, optional={"tool_calls": CALLS | JSON, "tool_call_id": TEXT}
    ),
    max_size=2,
)
SAMPLING = st.dictionaries(st.sampled_from([*SAME, *NEUTRAL, "logprobs", "x"]), JSON, max_size=3)
COMMON = {
    "stream": st.booleans() | st.none(),
    "model": TEXT,
    "options": st.dictionaries(TEXT, JSON, max_size=3),
    "system": TEXT,
    "keep_alive": st.sampled_from(["5m", -1, "x", None]),
    "sampling_params": SAMPLING,
    "reasoning_effort": st.sampled_from(["low", "none", "x"]) | DEEP,
    "response_format": JSON,
    "file": st.just("UklGRg==") | JSON,
}
RIGHT = st.fixed_dictionaries({"prompt": TEXT}, optional=COMMON) | st.fixed_dictionaries(
    {"messages": MESSAGES}, optional=COMMON
)
NEARLY_RIGHT = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(FIELDS, JSON) | {"prompt": TEXT | JSON, "messages": MESSAGES | JSON}
)
BODIES = RIGHT | NEARLY_RIGHT | JSON | RIGHT.map(json.dumps)


def deepened(value: Any, levels: int) -> Any:
    """Return `value` with lists `levels` deep in the places meant for them."""
    if value == "<deep>":
        deep: list[Any] = []
        for _ in range(levels):
            deep = [deep]
        return deep
    if isinstance(value, list):
        return [deepened(item, levels) for item in value]
    return {name: deepened(item, levels) for name, item in value.items()} if isinstance(value, dict) else value


def examples(usual: int) -> int:
    """Return how many inputs to try: `usual`, or what FUZZ_EXAMPLES says."""
    return int(os.environ.get("FUZZ_EXAMPLES") or usual)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """An input that works, with one thing in it replaced or left out."""
    shape = draw(st.sampled_from(list(shapes.SHAPES.values())))
    whole = copy.deepcopy(shape.streamed() if draw(st.booleans()) else shape.example)
    holder, key = draw(st.sampled_from(list(_places(whole))))
    if draw(st.booleans()):
        holder[key] = draw(JSON | DEEP)
    else:
        del holder[key]
    return whole


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


JOBS = (
    JSON
    | RIGHT
    | NEARLY_RIGHT
    | damaged()
    | st.fixed_dictionaries({"route": PATHS | JSON}, optional={"body": BODIES, "method": JSON | DEEP})
    | st.fixed_dictionaries({"openai_route": PATHS | JSON | DEEP}, optional={"openai_input": BODIES | DEEP})
)
