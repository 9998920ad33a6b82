"""How much video memory a model needs at most, from what its file says of its weights and how it is to be served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from worker.gguf_head import Array

# Bytes of one number in the cache, by OLLAMA_KV_CACHE_TYPE: blocks of 32 numbers for the quantized ones.
CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
# What the driver keeps for a process that computes, with its kernels loaded.
CONTEXT_BYTES = 1 << 30
# What Ollama itself allows for running a projector, beside its weights.
PROJECTOR_BYTES = 1 << 30
_HALF, _FLOAT = 2, 4
# A list of merges stands for the vocabulary when it comes first: tokens are merges, bytes and a few special ones.
_BESIDE_MERGES = 4096


class Dimensions(NamedTuple):
    """What decides how much memory beside its weights a model takes; counts, not bytes.

    `heads` and all below are the largest of any layer. `state` is what a recurrent layer keeps for each sequence, 0 for
    a model without such layers; `masks` how many attention masks are made, 2 with a sliding window.
    """

    layers: int
    heads: int
    kv_heads: int
    head_width: int
    embedding: int
    feed_forward: int
    vocabulary: int
    trained_context: int
    state: int = 0
    masks: int = 1


class Service(NamedTuple):
    """How a model is served: the context of one slot, slots, tokens computed at once, the cache's bytes a number."""

    context: int
    slots: int
    batch: int
    cache_bytes: float = 2.0
    flash_attention: bool = True


class Footprint(NamedTuple):
    """An upper bound of what a model takes on one device, in bytes, by purpose."""

    weights: int
    cache: int
    compute: int
    context: int = CONTEXT_BYTES

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.compute + self.context

    @property
    def wanted(self) -> int:
        """How much must be free to rely on the estimate: a tenth more, and at least 1 GiB more."""
        return self.total + max(1 << 30, self.total // 10)


class DimensionsUnknown(ValueError):
    """The metadata do not say what an estimate needs; the text names it."""


def dimensions(metadata: Mapping[str, Any]) -> Dimensions:
    """Read the dimensions from a GGUF's metadata, lists by layer as tuples.

    Raises:
        DimensionsUnknown: a number is missing, or the model is of a kind whose memory is not known.
    """
    architecture = str(metadata.get("general.architecture", ""))

    def value(key: str, default: int | None = None) -> int:
        found = metadata.get(f"{architecture}.{key}", default)
        largest = max(found, default=None) if isinstance(found, tuple) else found
        if isinstance(largest, bool) or not isinstance(largest, int) or largest < 0:
            raise DimensionsUnknown(f"its file does not say {architecture or 'its'} {key}")
        return largest

    if any(key.startswith((f"{architecture}.wkv.", f"{architecture}.pooling_type")) for key in metadata):
        raise DimensionsUnknown(f"the memory of {architecture} is not known")
    heads, embedding = value("attention.head_count"), value("embedding_length")
    if not heads:
        raise DimensionsUnknown(f"{architecture} has no attention, and its memory is not known")
    widths = [
        value(f"attention.{kind}_length{suffix}", embedding // heads if not suffix else 0)
        for kind in ("key", "value")
        for suffix in ("", "_swa", "_mla")
    ]
    expert = value("expert_feed_forward_length", value("feed_forward_length", 0))
    # Each expert in use has an output as wide as the embedding, and all are kept until they are summed up.
    experts = value("expert_used_count", 0) * max(expert, embedding)
    shared = value("expert_shared_feed_forward_length", 0)
    return Dimensions(
        layers=value("block_count"),
        heads=heads,
        kv_heads=value("attention.head_count_kv", heads),
        head_width=max(widths),
        embedding=embedding,
        feed_forward=max(value("feed_forward_length", 0), experts + shared),
        vocabulary=_vocabulary(metadata, value("vocab_size", 0)),
        trained_context=value("context_length"),
        state=_state(value),
        masks=2 if f"{architecture}.attention.sliding_window" in metadata else 1,
    )


def estimate(
    model: Dimensions, service: Service, *, weights_bytes: int, projector_bytes: int | None = None
) -> Footprint:
    """Return an upper bound, every layer taken to attend to everything; nothing in it shrinks when an input grows.

    `projector_bytes` is None without a projector, and 0 for one that is part of the weights.
    """
    tokens = max(0, min(service.context, model.trained_context)) * service.slots
    of_layer = 2 * model.kv_heads * model.head_width
    cache = model.layers * (tokens * of_layer * service.cache_bytes + service.slots * model.state * _FLOAT)
    # One step of a batch: its logits, the widest activations of a layer, and who may see whom.
    widths = model.vocabulary + 8 * model.embedding + 4 * model.feed_forward + 4 * model.heads * model.head_width
    compute = service.batch * (widths * _FLOAT + model.masks * tokens * (_FLOAT + _HALF))
    if not service.flash_attention:
        compute += 2 * service.batch * model.heads * tokens * _FLOAT
    # A cache in another form than half precision is converted for each batch, one layer at a time.
    compute += tokens * of_layer * _HALF
    if projector_bytes is not None:
        compute += PROJECTOR_BYTES
    return Footprint(weights_bytes + (projector_bytes or 0), round(cache), compute)


def batch_for(tokens: int) -> int:
    """Return how many tokens Ollama lets a runner compute at once, by its whole context, with flash attention."""
    return 2048 if tokens > 32768 else 1024 if tokens > 4096 else 512  # noqa: PLR2004 - Ollama's own steps


def _vocabulary(metadata: Mapping[str, Any], declared: int) -> int:
    lists = {key: value.length for key, value in metadata.items() if isinstance(value, Array) and _of_tokenizer(key)}
    listed = lists.get("tokenizer.ggml.tokens") or max(lists.values(), default=-_BESIDE_MERGES) + _BESIDE_MERGES
    if not max(declared, listed):
        raise DimensionsUnknown("its file does not say how large its vocabulary is")
    return max(declared, listed)


def _of_tokenizer(key: str) -> bool:
    return key.startswith("tokenizer.ggml.")


def _state(value: Callable[..., int]) -> int:
    """Return how many numbers a recurrent layer keeps for a sequence: its state, and the window of its convolution."""
    inner, size = value("ssm.inner_size", 0), value("ssm.state_size", 0)
    window = inner + 2 * value("ssm.group_count", 0) * size
    return inner * size + max(0, value("ssm.conv_kernel", 0) - 1) * window
