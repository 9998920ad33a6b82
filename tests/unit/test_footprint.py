"""The upper bound of a model's video memory: known models, what a runner really took, and that it never shrinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.footprint import (
    CACHE_BYTES,
    Dimensions,
    DimensionsUnknown,
    Service,
    batch_for,
    dimensions,
    estimate,
)
from worker.gguf_head import Array

MIB, GIB, GB = 1 << 20, 1 << 30, 10**9
TOKENS = "tokenizer.ggml.tokens"


def metadata(architecture: str, vocabulary: int, /, **numbers: Any) -> dict[str, Any]:
    keys = {f"{architecture}.{name.replace('__', '.')}": value for name, value in numbers.items()}
    return {"general.architecture": architecture, **keys, TOKENS: Array(8, vocabulary)}


LLAMA_8B = metadata(
    "llama",
    128256,
    block_count=32,
    context_length=131072,
    embedding_length=4096,
    feed_forward_length=14336,
    attention__head_count=32,
    attention__head_count_kv=8,
)
LLAMA_70B = LLAMA_8B | metadata(
    "llama", 128256, block_count=80, embedding_length=8192, feed_forward_length=28672, attention__head_count=64
)
# Full attention in every fourth layer, the others keep a state.
QWEN_27B = metadata(
    "qwen35",
    248320,
    block_count=64,
    context_length=262144,
    embedding_length=5120,
    feed_forward_length=17408,
    attention__head_count=24,
    attention__head_count_kv=4,
    attention__key_length=256,
    attention__value_length=256,
    full_attention_interval=4,
    ssm__conv_kernel=4,
    ssm__inner_size=6144,
    ssm__state_size=128,
    ssm__group_count=16,
)
GEMMA_27B = metadata(
    "gemma3",
    262208,
    block_count=62,
    context_length=131072,
    embedding_length=5376,
    feed_forward_length=21504,
    attention__head_count=32,
    attention__head_count_kv=16,
    attention__key_length=128,
    attention__value_length=128,
    attention__sliding_window=1024,
)
QWEN_30B_EXPERTS = metadata(
    "qwen3moe",
    151936,
    block_count=48,
    context_length=262144,
    embedding_length=2048,
    feed_forward_length=6144,
    expert_feed_forward_length=768,
    expert_used_count=8,
    attention__head_count=32,
    attention__head_count_kv=4,
    attention__key_length=128,
    attention__value_length=128,
)
# A latent cache: one head of 576 numbers, of which the values are a part.
DEEPSEEK = metadata(
    "deepseek2",
    129280,
    block_count=61,
    context_length=163840,
    embedding_length=7168,
    feed_forward_length=18432,
    expert_feed_forward_length=2048,
    expert_used_count=8,
    attention__head_count=128,
    attention__head_count_kv=1,
    attention__key_length=576,
    attention__value_length=512,
    attention__key_length_mla=192,
    attention__value_length_mla=128,
)
KNOWN = [LLAMA_8B, LLAMA_70B, QWEN_27B, GEMMA_27B, QWEN_30B_EXPERTS, DEEPSEEK]


def served(context: int, **more: Any) -> Service:
    return Service(context, 1, batch_for(context), **more)


def test_the_dimensions_of_a_known_model() -> None:
    assert dimensions(LLAMA_8B) == Dimensions(
        layers=32,
        heads=32,
        kv_heads=8,
        head_width=128,
        embedding=4096,
        feed_forward=14336,
        vocabulary=128256,
        trained_context=131072,
    )


@dataclass(frozen=True)
class Run:
    """What a runner said it took, in MiB, for a model with these dimensions and 2 layers."""

    service: Service
    cache: float
    compute: float


TWO_LAYERS = dimensions(LLAMA_8B)._replace(layers=2)
# Buffer sizes printed by llama.cpp b11669 on a CPU for Llama 3.1 8B's dimensions with 2 layers.
PRINTED = [
    Run(Service(4096, 1, 512), 32, 128.02),
    Run(Service(32768, 1, 1024), 256, 312.04),
    Run(Service(131072, 1, 2048), 1024, 1008.07),
    Run(Service(4096, 1, 512, flash_attention=False), 32, 316.01),
    Run(Service(32768, 1, 512, flash_attention=False), 256, 2164.01),
    Run(Service(32768, 1, 512, CACHE_BYTES["q8_0"]), 136, 156.10),
]


@pytest.mark.parametrize("run", PRINTED, ids=lambda run: str(tuple(run.service)))
def test_the_bound_holds_for_what_a_runner_took(run: Run) -> None:
    found = estimate(TWO_LAYERS, run.service, weights_bytes=0)
    assert found.cache == run.cache * MIB
    assert run.compute * MIB <= found.compute <= 5 * run.compute * MIB


SMALL_HYBRID = metadata(
    "qwen35",
    320,
    block_count=9,
    context_length=4096,
    embedding_length=128,
    feed_forward_length=256,
    attention__head_count=4,
    attention__head_count_kv=2,
    attention__key_length=64,
    attention__value_length=64,
    ssm__conv_kernel=4,
    ssm__inner_size=256,
    ssm__state_size=64,
    ssm__group_count=2,
)


@pytest.mark.parametrize(("flash_attention", "compute_mib"), [(True, 7.34), (False, 43.27)])
def test_the_bound_holds_for_a_hybrid_that_was_run(compute_mib: float, *, flash_attention: bool) -> None:
    found = estimate(dimensions(SMALL_HYBRID), Service(4096, 1, 512, flash_attention=flash_attention), weights_bytes=0)
    # 4 MiB in its two layers with full attention, 0.41 MiB of states in the others.
    assert found.cache >= (4 + 0.41) * MIB
    assert compute_mib * MIB <= found.compute <= 5 * compute_mib * MIB


@pytest.mark.parametrize(
    ("model", "context", "cache_bytes"),
    [
        (LLAMA_8B, 4096, 512 * MIB),
        (LLAMA_8B, 131072, 16 * GIB),
        (LLAMA_70B, 8192, 2560 * MIB),
        (QWEN_30B_EXPERTS, 32768, 3 * GIB),
    ],
)
def test_the_cache_of_models_with_full_attention_is_exact(
    model: dict[str, Any], context: int, cache_bytes: int
) -> None:
    assert estimate(dimensions(model), served(context), weights_bytes=0).cache == cache_bytes


def test_a_hybrid_is_taken_to_attend_everywhere_and_keep_a_state_everywhere() -> None:
    found = estimate(dimensions(QWEN_27B), served(4096), weights_bytes=0)
    of_attention = 16 * 4096 * 4 * (256 + 256) * 2
    of_states = 48 * (128 * 6144 + 3 * (6144 + 2 * 16 * 128)) * 4
    assert of_attention + of_states < found.cache == 4 * of_attention + of_states * 64 // 48


def test_a_latent_cache_is_bounded() -> None:
    found = estimate(dimensions(DEEPSEEK), served(4096), weights_bytes=0)
    assert 61 * 4096 * 576 * 2 <= found.cache <= 2 * 61 * 4096 * 576 * 2


@pytest.mark.parametrize(
    ("model", "weights_gb", "context", "free_gib", "fits"),
    [
        (LLAMA_8B, 4.92, 4096, 79, True),
        (LLAMA_8B, 4.92, 4096, 15, True),
        (LLAMA_8B, 4.92, 4096, 7, False),
        (LLAMA_8B, 4.92, 131072, 23, False),
        (LLAMA_8B, 4.92, 131072, 44, True),
        (LLAMA_70B, 42.5, 4096, 79, True),
        (LLAMA_70B, 42.5, 4096, 47, True),
        (LLAMA_70B, 42.5, 4096, 44, False),
        (LLAMA_70B, 42.5, 131072, 79, False),
        (QWEN_27B, 17.5, 4096, 19, False),
        (QWEN_27B, 17.5, 4096, 23, True),
        (GEMMA_27B, 17.4, 8192, 31, True),
        (QWEN_30B_EXPERTS, 18.6, 4096, 23, True),
        (DEEPSEEK, 404.0, 4096, 139, False),
    ],
)
def test_what_fits_on_which_card(
    model: dict[str, Any], weights_gb: float, context: int, free_gib: int, *, fits: bool
) -> None:
    found = estimate(dimensions(model), served(context), weights_bytes=int(weights_gb * GB))
    assert (found.wanted <= free_gib * GIB) == fits


def test_a_projector_brings_its_weights_and_room_to_run() -> None:
    without, inside, beside = (
        estimate(dimensions(GEMMA_27B), served(4096), weights_bytes=GB, projector_bytes=size)
        for size in (None, 0, 850 * MIB)
    )
    assert inside.compute - without.compute == GIB
    assert (inside.weights, beside.weights - inside.weights) == (GB, 850 * MIB)


def test_no_more_than_the_trained_context_is_used() -> None:
    model = dimensions(LLAMA_8B)
    assert (
        estimate(model, Service(262144, 1, 512), weights_bytes=0).cache
        == estimate(model, Service(131072, 1, 512), weights_bytes=0).cache
    )


def test_every_slot_has_a_context() -> None:
    model = dimensions(LLAMA_8B)
    one, four = (estimate(model, Service(4096, slots, 512), weights_bytes=0).cache for slots in (1, 4))
    assert four == 4 * one


@pytest.mark.parametrize(("free_gib", "total_gb"), [(1, 2), (10, 100)])
def test_the_reserve_is_a_tenth_and_no_less_than_a_gibibyte(free_gib: int, total_gb: int) -> None:
    found = estimate(dimensions(LLAMA_8B), served(4096), weights_bytes=0)
    found = found._replace(weights=total_gb * GB - found.total)
    assert found.total == total_gb * GB
    assert found.wanted - found.total == (GIB if free_gib == 1 else 10 * GB)


NUMBERS = st.integers(0, 1 << 20)
MODELS = st.builds(Dimensions, *[NUMBERS] * 9, masks=st.integers(1, 2))
SERVICES = st.builds(
    Service, st.integers(1, 1 << 20), st.integers(1, 64), st.integers(1, 4096), st.sampled_from([*CACHE_BYTES.values()])
)


@given(MODELS, SERVICES, NUMBERS, st.data())
def test_nothing_shrinks_when_anything_grows(
    model: Dimensions, service: Service, weights: int, data: st.DataObject
) -> None:
    base = estimate(model, service, weights_bytes=weights, projector_bytes=weights)
    more = data.draw(st.integers(1, 1 << 20))
    field = data.draw(st.sampled_from([*Dimensions._fields, "context", "slots", "batch", "cache_bytes", "weights"]))
    if field in Dimensions._fields:
        model = model._replace(**{field: getattr(model, field) + more})
    elif field != "weights":
        service = service._replace(**{field: getattr(service, field) + more})
    grown = estimate(
        model,
        service,
        weights_bytes=weights + (more if field == "weights" else 0),
        projector_bytes=weights,
    )
    assert all(after >= before for before, after in zip(base, grown, strict=True))
    assert base.total < base.wanted <= grown.wanted
    assert sum(base) == base.total


@given(MODELS, SERVICES)
def test_without_flash_attention_it_is_never_less(model: Dimensions, service: Service) -> None:
    with_it = estimate(model, service, weights_bytes=0)
    assert estimate(model, service._replace(flash_attention=False), weights_bytes=0).compute >= with_it.compute


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_a_larger_context_never_has_a_smaller_batch(one: int, other: int) -> None:
    assert batch_for(min(one, other)) <= batch_for(max(one, other))


@pytest.mark.parametrize("model", KNOWN, ids=lambda model: model["general.architecture"])
@pytest.mark.parametrize("key", ["block_count", "context_length", "embedding_length", "attention.head_count"])
def test_without_a_number_there_is_no_estimate(model: dict[str, Any], key: str) -> None:
    name = f"{model['general.architecture']}.{key}"
    with pytest.raises(DimensionsUnknown, match=rf"does not say \w+ {key}$"):
        dimensions({other: value for other, value in model.items() if other != name})


@pytest.mark.parametrize(
    "wrong",
    [{"llama.block_count": "32"}, {"llama.block_count": True}, {"llama.block_count": -1}, {"llama.block_count": ()}],
)
def test_what_is_no_count_is_not_counted_with(wrong: dict[str, Any]) -> None:
    with pytest.raises(DimensionsUnknown, match="block_count"):
        dimensions(LLAMA_8B | wrong)


@pytest.mark.parametrize(
    "kind", [{"llama.wkv.head_size": 64}, {"llama.pooling_type": 1}, {"llama.attention.head_count": 0}]
)
def test_a_kind_whose_memory_is_not_known_has_no_estimate(kind: dict[str, Any]) -> None:
    with pytest.raises(DimensionsUnknown, match="is not known"):
        dimensions(LLAMA_8B | kind)


def test_of_lists_by_layer_the_largest_counts() -> None:
    lists = {
        "llama.attention.head_count": (32, 0, 16),
        "llama.attention.head_count_kv": (0, 4, 8),
        "llama.feed_forward_length": (1024, 14336),
    }
    found = dimensions(LLAMA_8B | lists)
    assert (found.heads, found.kv_heads, found.feed_forward) == (32, 8, 14336)


def test_the_wider_heads_of_a_sliding_window_count() -> None:
    wide = {"gemma3.attention.key_length": 64, "gemma3.attention.value_length_swa": 512}
    assert dimensions(GEMMA_27B | wide).head_width == 512


def test_without_its_own_number_every_head_has_a_cache() -> None:
    found = dimensions({key: value for key, value in LLAMA_8B.items() if not key.endswith("head_count_kv")})
    assert found.kv_heads == 32


def test_merges_stand_for_a_vocabulary_that_comes_later() -> None:
    merges = {key: value for key, value in LLAMA_8B.items() if key != TOKENS} | {
        "tokenizer.ggml.merges": Array(8, 127744)
    }
    assert 128256 <= dimensions(merges).vocabulary < 140_000


def test_a_vocabulary_may_be_told_by_number() -> None:
    named = {key: value for key, value in LLAMA_8B.items() if key != TOKENS}
    assert dimensions(named | {"llama.vocab_size": 32000}).vocabulary == 32000
    assert dimensions(LLAMA_8B | {"llama.vocab_size": 200_000}).vocabulary == 200_000
    with pytest.raises(DimensionsUnknown, match="vocabulary"):
        dimensions(named)
