from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.quantization import is_model, is_projector, label_of, matches, normalised, part_of, stem

LABELS = [
    "Q2_K", "Q2_K_L", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q3_K_XL", "Q4_0", "Q4_1", "Q4_K_S", "Q4_K_M",
    "Q4_K_L", "Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M", "Q5_K_L", "Q6_K", "Q6_K_L", "Q8_0", "IQ1_S", "IQ1_M", "IQ2_XXS",
    "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_XS", "IQ4_NL", "TQ1_0", "TQ2_0",
    "BF16", "F16", "F32", "MXFP4", "MXFP4_MOE", "NVFP4", "Q4", "Q8", "UD-IQ1_S", "UD-IQ2_XXS", "UD-Q2_K_XL",
    "UD-Q4_K_XL", "UD-Q8_K_XL", "Q4_0_4_4",
]  # fmt: skip
labels = st.sampled_from(LABELS)
# What stands around a label in real names, and holds none itself.
names = st.sampled_from(
    ["Llama-3.2-3B-Instruct", "gpt-oss-20b", "qwen2.5-0.5b", "gemma-3-4b-it-qat", "Phi-3", "x", "i1"]
)
borders = st.sampled_from("-_./")


def randomly_cased(text: str) -> st.SearchStrategy[str]:
    return st.lists(st.booleans(), min_size=len(text), max_size=len(text)).map(
        lambda upper: "".join(c.upper() if up else c.lower() for c, up in zip(text, upper, strict=True))
    )


@given(names, borders, labels.flatmap(lambda label: st.tuples(st.just(label), randomly_cased(label))), st.booleans())
def test_a_label_is_found_at_any_border_and_in_any_case(
    name: str,
    border: str,
    label: tuple[str, str],
    split: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    known, spelled = label
    path = f"{name}{border}{spelled}{'-00002-of-00003' if split else ''}.gguf"
    assert label_of(path) == known
    assert matches(path, spelled) == 3


@given(names, labels, labels)
def test_one_label_never_means_another(name: str, there: str, wanted: str) -> None:
    quality = matches(f"{name}-{there}.gguf", wanted)
    assert (quality == 3) == (there == wanted)
    assert quality in ({3} if there == wanted else {2} if there == f"UD-{wanted}" else {0})


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("mistral-7b-instruct-v0.1.Q4_K_M.gguf", "Q4_K_M"),
        ("Qwen3.6-27B.i1-Q4_K_M.gguf", "Q4_K_M"),
        ("Qwen3_1.7B.Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("Phi-3-mini-4k-instruct-q4.gguf", "Q4"),
        ("Phi-3-mini-4k-instruct-fp16.gguf", "F16"),
        ("gemma-3-4b-it-q4_0.gguf", "Q4_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-120b-MXFP4-00001-of-00002.gguf", "MXFP4"),
        ("Qwen3-0.6B-UD-Q6_K_XL.gguf", "UD-Q6_K_XL"),
        ("UD-Q4_K_XL/GLM-4.5-Air-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("Q3_K_S/Qwen3-235B-A22B-Q3_K_S-00001-of-00003.gguf", "Q3_K_S"),
        ("Q8_0/model-00001-of-00004.gguf", "Q8_0"),
        ("moondream2-text-model-f16.gguf", "F16"),
        ("Model.f16.q6.gguf", "Q6"),
        ("Qwen3-8B.gguf", ""),
        ("Q4_K_M_but_in_words/model.gguf", "Q4_K_M"),
        ("q4f16_1.gguf", ""),
    ],
)
def test_real_names(path: str, label: str) -> None:
    assert label_of(path) == label


@pytest.mark.parametrize(
    ("path", "wanted", "quality"),
    [
        ("m-Q4_K_M.gguf", "Q4", 0),
        ("m-Q4_K_M.gguf", "Q4_K", 0),
        ("m-Q4_K_M.gguf", "K_M", 0),
        ("m-Q4_K_M.gguf", "Q4_K_S", 0),
        ("m-UD-Q4_K_XL.gguf", "q4_k_xl", 2),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", 3),
        ("m-fp16.gguf", "F16", 3),
        ("m-F16.gguf", "fp16", 3),
        ("m-q3_hifi.gguf", "Q3_HIFI", 1),
        ("m-turbo4.gguf", "turbo4", 1),
        ("m-turbo42.gguf", "turbo4", 0),
        ("turbo4/m-Q8_0.gguf", "turbo4", 1),
        ("m-Q8_0.gguf", "", 0),
    ],
)
def test_how_well_a_name_fits(path: str, wanted: str, quality: int) -> None:
    assert matches(path, wanted) == quality


@pytest.mark.parametrize(
    ("path", "model", "projector"),
    [
        ("m-Q4_K_M.gguf", True, False),
        ("M.GGUF", True, False),
        ("mmproj-model-f16.gguf", False, True),
        ("moondream2-mmproj-f16.gguf", False, True),
        ("mmproj-gemma-4-E4B-it-BF16.gguf", False, True),
        ("gemma4-12b-unsloth-mmproj-F16.gguf", False, True),
        ("mmproj/model-Q8_0.gguf", True, False),
        ("imatrix.gguf", False, False),
        ("m-imatrix.gguf", False, False),
        ("commproject-Q4_0.gguf", True, False),
        ("README.md", False, False),
        ("m.gguf.part1of2", False, False),
    ],
)
def test_what_a_file_is(path: str, *, model: bool, projector: bool) -> None:
    assert (is_model(path), is_projector(path)) == (model, projector)


def test_parts() -> None:
    assert part_of("a/m-00002-of-00013.gguf") == (2, 13)
    assert part_of("m.gguf") is None
    assert part_of("m-2-of-3.gguf") is None
    assert stem("a/m-00002-of-00013.GGUF") == "a/m"


def test_spellings() -> None:
    assert [normalised(text) for text in (" q4_k_m ", "fp16", "FP32", "bf16")] == ["Q4_K_M", "F16", "F32", "BF16"]
