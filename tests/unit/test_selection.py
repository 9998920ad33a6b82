from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.quantization import is_projector
from worker.selection import NoMatch, RepoFile, Selection, select, variants

GB = 10**9


def files(*names: str, **sizes: float) -> list[RepoFile]:
    """Files of rising size, in GB, unless `sizes` has theirs."""
    return [RepoFile(name, int(sizes.get(name, place) * GB)) for place, name in enumerate(names, start=1)]


# Names as they are in repositories on the Hub; what HF_QUANTIZATION and HF_MODEL_FILE then mean.
BARTOWSKI = [f"Llama-3.2-3B-Instruct-{label}.gguf" for label in [
    "IQ3_M", "IQ4_XS", "Q3_K_L", "Q3_K_XL", "Q4_0", "Q4_0_4_4", "Q4_K_S", "Q4_K_M", "Q4_K_L", "Q5_K_S", "Q5_K_M",
    "Q6_K", "Q6_K_L", "Q8_0", "f16",
]]  # fmt: skip
UNSLOTH_VISION = [
    *(f"mmproj-{label}.gguf" for label in ("BF16", "F16", "F32")),
    *(f"Qwen2.5-VL-7B-Instruct-{label}.gguf" for label in ("UD-IQ1_S", "UD-Q2_K_XL", "IQ4_NL", "Q4_K_M")),
    *(f"Qwen2.5-VL-7B-Instruct-{label}.gguf" for label in ("UD-Q4_K_XL", "Q8_0", "BF16")),
]
UNSLOTH_LARGE = [
    *(f"Q3_K_S/Qwen3-235B-A22B-Q3_K_S-0000{n}-of-00003.gguf" for n in (1, 2, 3)),
    *(f"UD-Q4_K_XL/Qwen3-235B-A22B-UD-Q4_K_XL-0000{n}-of-00003.gguf" for n in (3, 1, 2)),
]
QWEN = [
    "qwen2.5-7b-instruct-q2_k.gguf",
    "qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf",
    "qwen2.5-7b-instruct-q4_k_m-00002-of-00002.gguf",
    "qwen2.5-7b-instruct-fp16-00001-of-00002.gguf",
    "qwen2.5-7b-instruct-fp16-00002-of-00002.gguf",
]
PHI = ["Phi-3-mini-4k-instruct-q4.gguf", "Phi-3-mini-4k-instruct-fp16.gguf"]
GOOGLE = ["gemma-3-4b-it-q4_0.gguf", "mmproj-model-f16-4B.gguf"]
MOONDREAM = ["moondream2-mmproj-f16.gguf", "moondream2-text-model-f16.gguf"]
MRADERMACHER = ["Qwen3.6-27B.i1-IQ1_S.gguf", "Qwen3.6-27B.i1-Q4_K_M.gguf", "imatrix.dat"]
GPT_OSS = ["gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b-F16.gguf"]
SINGLE = ["SmolLM2-135M-Instruct.gguf", "README.md"]


@pytest.mark.parametrize(
    ("names", "quantization", "file", "chosen", "projector"),
    [
        (BARTOWSKI, "", "", "Llama-3.2-3B-Instruct-Q4_K_M.gguf", None),
        (BARTOWSKI, "q4_k_s", "", "Llama-3.2-3B-Instruct-Q4_K_S.gguf", None),
        (BARTOWSKI, "Q4_0", "", "Llama-3.2-3B-Instruct-Q4_0.gguf", None),
        (BARTOWSKI, "FP16", "", "Llama-3.2-3B-Instruct-f16.gguf", None),
        (BARTOWSKI, "Q8_0", "llama-3.2-3b-instruct-iq3_m.gguf", "Llama-3.2-3B-Instruct-IQ3_M.gguf", None),
        (UNSLOTH_VISION, "", "", "Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", "mmproj-F16.gguf"),
        (UNSLOTH_VISION, "Q4_K_XL", "", "Qwen2.5-VL-7B-Instruct-UD-Q4_K_XL.gguf", "mmproj-F16.gguf"),
        (UNSLOTH_VISION, "BF16", "", "Qwen2.5-VL-7B-Instruct-BF16.gguf", "mmproj-F16.gguf"),
        (UNSLOTH_LARGE, "", "", UNSLOTH_LARGE[:3], None),
        (UNSLOTH_LARGE, "UD-Q4_K_XL", "", sorted(UNSLOTH_LARGE[3:]), None),
        (UNSLOTH_LARGE, "", UNSLOTH_LARGE[5], sorted(UNSLOTH_LARGE[3:]), None),
        (UNSLOTH_LARGE, "", "Qwen3-235B-A22B-Q3_K_S-00002-of-00003.gguf", UNSLOTH_LARGE[:3], None),
        (QWEN, "", "", QWEN[1:3], None),
        (QWEN, "Q2_K", "", QWEN[0], None),
        (QWEN, "F16", "", QWEN[3:], None),
        (PHI, "", "", PHI[0], None),
        (PHI, "Q4", "", PHI[0], None),
        (GOOGLE, "", "", GOOGLE[0], GOOGLE[1]),
        (MOONDREAM, "", "", MOONDREAM[1], MOONDREAM[0]),
        (MRADERMACHER, "", "", MRADERMACHER[1], None),
        (GPT_OSS, "MXFP4", "", GPT_OSS[0], None),
        (SINGLE, "", "", SINGLE[0], None),
    ],
)
def test_real_repositories(
    names: list[str], quantization: str, file: str, chosen: str | list[str], projector: str | None
) -> None:
    found = select("org/repo", files(*names), quantization=quantization, file=file)
    assert [part.path for part in found.model.parts] == ([chosen] if isinstance(chosen, str) else chosen)
    assert (found.projector.path if found.projector else None) == projector


@pytest.mark.parametrize(
    ("names", "quantization", "file", "words"),
    [
        (BARTOWSKI, "Q4", "", "org/repo has no Q4; it has: IQ3_M (1.0 GB), IQ4_XS (2.0 GB), Q3_K_L"),
        (QWEN, "Q4_K_S", "", "org/repo has no Q4_K_S; it has: Q2_K (1.0 GB), Q4_K_M (5.0 GB), F16 (9.0 GB)"),
        (
            QWEN,
            "",
            "qwen.gguf",
            "org/repo has no single file 'qwen.gguf'; its GGUF files: qwen2.5-7b-instruct-q2_k.gguf, ",
        ),
        (
            ["model.safetensors", "config.json"],
            "",
            "",
            "org/repo has no GGUF model; it has: config.json, model.safetensors",
        ),
        ([], "", "", "org/repo has no GGUF file"),
        (["mmproj-F16.gguf"], "F16", "", "org/repo has no GGUF model; it has: mmproj-F16.gguf"),
        (
            ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"],
            "",
            "",
            "several files for Q4_K_M: a-Q4_K_M.gguf, b-Q4_K_M.gguf; name one",
        ),
        (
            ["a-Q8_0.gguf", "b-Q8_0.gguf", "a-Q4_K_M.gguf"],
            "q8_0",
            "",
            "several files for q8_0: a-Q8_0.gguf, b-Q8_0.gguf",
        ),
        (["a/m.gguf", "b/m.gguf"], "", "m.gguf", "has no single file 'm.gguf'; its GGUF files: a/m.gguf, b/m.gguf"),
        (["m-Q8_0-00001-of-00002.gguf"], "Q8_0", "", "lacks parts of m-Q8_0; it has: m-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_what_cannot_be_chosen_is_listed(names: list[str], quantization: str, file: str, words: str) -> None:
    with pytest.raises(NoMatch) as caught:
        select("org/repo", files(*names), quantization=quantization, file=file)
    assert words in str(caught.value)


def test_a_long_list_is_cut() -> None:
    names = [f"m{n}-Q8_0.gguf" for n in range(40)]
    with pytest.raises(NoMatch, match="and 10 more"):
        select("org/repo", files(*names), quantization="Q2_K")


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (SINGLE, ()),
        (["m-Q4_K_M.gguf"], ()),
        (
            ["m-Q2_K.gguf", "m-Q4_K_M.gguf"],
            ("org/repo: no quantization was asked for; taking Q4_K_M (2.0 GB) of Q2_K (1.0 GB), Q4_K_M (2.0 GB)",),
        ),
        (
            ["m-Q8_0.gguf", "m-Q6_K.gguf"],
            (
                (
                    "org/repo: no quantization was asked for and there is no Q4_K_M: the smallest; taking "
                    "Q8_0 (1.0 GB) of Q8_0 (1.0 GB), Q6_K (2.0 GB)"
                ),
            ),
        ),
    ],
)
def test_what_was_not_asked_for_is_said(names: list[str], note: tuple[str, ...]) -> None:
    assert select("org/repo", files(*names)).notes == note


def test_another_spelling_of_a_file_is_said() -> None:
    found = select("org/repo", files("Dir/M-Q8_0.gguf"), file="m-q8_0.GGUF")
    assert found.notes == ("'m-q8_0.GGUF' is spelled 'Dir/M-Q8_0.gguf' in org/repo",)


def test_the_smallest_is_a_complete_one() -> None:
    found = select("org/repo", files("a-Q2_K-00001-of-00002.gguf", "a-Q6_K.gguf", "a-Q8_0.gguf"))
    assert found.model.label == "Q6_K"


@pytest.mark.parametrize(
    ("names", "projector"),
    [
        (["mmproj-Q8_0.gguf", "mmproj-BF16.gguf"], "mmproj-BF16.gguf"),
        (["mmproj-F32.gguf", "mmproj-Q4_0.gguf"], "mmproj-F32.gguf"),
        (["a/mmproj-Q8_0.gguf", "mmproj-F16.gguf"], "a/mmproj-Q8_0.gguf"),
        (["mmproj-a.gguf", "mmproj-b.gguf"], "mmproj-a.gguf"),
        (["mmproj-F16.txt"], None),
    ],
)
def test_which_projector_goes_with_a_model(names: list[str], projector: str | None) -> None:
    found = select("org/repo", files("a/m-Q4_0.gguf", *names))
    assert (found.projector.path if found.projector else None) == projector


def test_sizes_add_up() -> None:
    found = select("org/repo", files(*QWEN, "mmproj-F16.gguf"), quantization="F16")
    assert isinstance(found, Selection)
    assert (found.model.size_bytes, found.size_bytes) == (9 * GB, 15 * GB)
    assert str(found.model) == "F16 (9.0 GB)"
    assert [str(variant) for variant in variants([RepoFile("tiny.gguf", 1_500_000)])] == ["tiny (1.5 MB)"]


@given(st.lists(st.sampled_from([*UNSLOTH_VISION, *QWEN, *GOOGLE, *MOONDREAM, *MRADERMACHER]), unique=True))
def test_whatever_is_chosen_is_a_whole_model_of_the_listing(names: list[str]) -> None:
    listed = files(*names)
    try:
        found = select("org/repo", listed)
    except NoMatch:
        return
    assert set(found.files) <= set(listed)
    assert not any(is_projector(part.path) for part in found.model.parts)
    assert found.model.complete
