from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.names import NameInvalid
from worker.references import DEFAULT_MODEL, Asked, from_repository, from_request, from_text, listed

HUB = "https://huggingface.co"


@pytest.mark.parametrize(
    ("text", "name", "settled", "more"),
    [
        ("llama3.2:3b", "llama3.2:3b", True, {}),
        ("me/model", "me/model:latest", True, {}),
        ("registry.example:5000/me/model:x", "registry.example:5000/me/model:x", True, {}),
        ("hf.co/org/Repo-GGUF", "hf.co/org/Repo-GGUF:latest", True, {"repo": "org/Repo-GGUF"}),
        ("hf.co/org/Repo:q4_k_m", "hf.co/org/Repo:q4_k_m", True, {"repo": "org/Repo", "quantization": "Q4_K_M"}),
        (f"{HUB}/org/Repo:Q8_0", "hf.co/org/Repo:Q8_0", True, {"repo": "org/Repo", "quantization": "Q8_0"}),
        (f"{HUB}/org/Repo/blob/main/a/M-Q8_0.gguf", "hf/org-repo:q8_0", True, {"file": "a/M-Q8_0.gguf"}),
        ("/data/My Model.Q4_K_M.gguf", "local/my-model:q4_k_m", True, {"place": "/data/My Model.Q4_K_M.gguf"}),
        ("file:///data/m.gguf", "local/m:latest", True, {"place": "/data/m.gguf"}),
        ("./m-F16-00001-of-00002.gguf", "local/m:f16", True, {"place": "./m-F16-00001-of-00002.gguf"}),
        ("/data/org/Repo-GGUF/", "local/repo-gguf:latest", False, {"place": "/data/org/Repo-GGUF/"}),
        (
            "s3://bucket/a/M-UD-Q4_K_XL.gguf",
            "s3/bucket-m:ud-q4_k_xl",
            True,
            {"place": "s3://bucket/a/M-UD-Q4_K_XL.gguf"},
        ),
        ("s3://bucket/org/repo", "s3/bucket-repo:latest", False, {}),
    ],
)
def test_what_ollama_model_may_be(text: str, name: str, settled: bool, more: dict[str, str]) -> None:  # noqa: FBT001 - a table's column
    wanted = from_text(f" {text} ")
    assert (wanted.name.short, wanted.settled, wanted.text) == (name, settled, text)
    assert {key: getattr(wanted, key) for key in more} == more


@pytest.mark.parametrize(
    ("text", "name", "settled", "more"),
    [
        (
            "unsloth/SmolLM2-135M-Instruct-GGUF",
            "hf/unsloth-smollm2-135m-instruct-gguf:latest",
            False,
            {"revision": "main"},
        ),
        ("org/repo:q5_k_m", "hf/org-repo:q5_k_m", True, {"quantization": "Q5_K_M"}),
        ("hf.co/org/repo", "hf/org-repo:latest", False, {"repo": "org/repo"}),
        (f"{HUB}/org/repo/", "hf/org-repo:latest", False, {"repo": "org/repo"}),
        ("HuggingFace.co/org/repo:UD-Q4_K_XL", "hf/org-repo:ud-q4_k_xl", True, {"quantization": "UD-Q4_K_XL"}),
        (f"{HUB}/org/repo/tree/dev", "hf/org-repo:latest", False, {"revision": "dev", "file": ""}),
        (
            f"{HUB}/org/repo/resolve/v1/a%20b/M.Q6_K.gguf?download=true",
            "hf/org-repo:q6_k",
            True,
            {"file": "a b/M.Q6_K.gguf"},
        ),
        (f"{HUB}/org/repo/blob/main/plain.gguf", "hf/org-repo:plain", True, {"file": "plain.gguf"}),
        (f"{'o' * 40}/{'r' * 90}", f"hf/{'o' * 40}-{'r' * 30}-", False, {}),
        ("/data/m-Q4_0.gguf", "local/m:q4_0", True, {}),
    ],
)
def test_what_hf_model_may_be(text: str, name: str, settled: bool, more: dict[str, str]) -> None:  # noqa: FBT001 - a table's column
    wanted = from_repository(text)
    assert wanted.name.short.startswith(name)
    assert len(wanted.name.model) <= 80
    assert wanted.settled == settled
    assert {key: getattr(wanted, key) for key in more} == more


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("llama3.2:3b", "'llama3.2:3b' is not a Hugging Face repository (owner/name); for a model of Ollama's library"),
        ("a/b/c", "'a/b/c' is not a Hugging Face repository (owner/name)"),
        ("org/re po", "is not a Hugging Face repository"),
        ("", "'' is not a Hugging Face repository"),
        ("https://example.com/org/repo", "is not a Hugging Face repository"),
        ("s3://", "names no file and no folder"),
        ("/", "names no file and no folder"),
    ],
)
def test_what_hf_model_may_not_be(text: str, words: str) -> None:
    with pytest.raises(NameInvalid) as caught:
        from_repository(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["http://127.0.0.1:1/x.gguf", "https://example.com/a/b.GGUF", "https://github.com/x", "ftp://host/ns/m", "x://"],
)
def test_a_url_that_nothing_understands_is_told_what_is(text: str) -> None:
    told = f"{text!r} names no model: of URLs only s3:// and Hugging Face's are understood; download the file"
    with pytest.raises(NameInvalid) as caught:
        from_text(text)
    assert str(caught.value).startswith(told)
    with pytest.raises(NameInvalid) as caught:
        Asked(ollama_model=text).resident()
    assert str(caught.value).startswith(f"OLLAMA_MODEL: {told}")


def test_a_registry_without_tls_is_a_url_that_is_understood() -> None:
    assert from_text("http://127.0.0.1:5000/lib/tiny:1b").name.short == "127.0.0.1:5000/lib/tiny:1b"


@pytest.mark.parametrize("text", ["/etc/passwd", "file:///etc/passwd", "s3://bucket/x.gguf", "~/m.gguf", " ../x.gguf"])
def test_a_job_may_not_name_places(text: str) -> None:
    with pytest.raises(NameInvalid, match="is a place, not a model name"):
        from_request(text)


def test_a_job_may_name_models() -> None:
    assert from_request("hf.co/org/repo:Q4_0").repo == "org/repo"
    assert from_request("smol").name.short == "smol:latest"


@pytest.mark.parametrize(
    ("asked", "name", "notes"),
    [
        (Asked(), DEFAULT_MODEL, []),
        (Asked(ollama_model="smol:135m"), "smol:135m", []),
        (
            Asked(hf_model="org/repo", ollama_model="smol"),
            "hf/org-repo:latest",
            ["HF_MODEL is set: OLLAMA_MODEL='smol' is ignored"],
        ),
        (Asked(hf_model="org/repo", hf_quantization="q8_0"), "hf/org-repo:q8_0", []),
        (Asked(hf_model="org/repo:Q4_0", hf_quantization="q8_0"), "hf/org-repo:q4_0", []),
        (Asked(hf_model="org/repo", hf_quantization="Q8_0", hf_model_file="x/M-Q4_0.gguf"), "hf/org-repo:q4_0", []),
        (
            Asked(hf_model="org/repo", hf_model_file=f"{HUB}/org/repo/resolve/main/M.i1-IQ1_S.gguf"),
            "hf/org-repo:iq1_s",
            [],
        ),
        (
            Asked(ollama_model="smol", hf_quantization="Q8_0"),
            "smol:latest",
            ["HF_MODEL is not set: HF_QUANTIZATION is ignored"],
        ),
        (Asked(ollama_model="/data/repo", hf_quantization="Q8_0"), "local/repo:q8_0", []),
        (
            Asked(models=("a", "b:1"), hf_model="org/repo", ollama_model="c"),
            "a:latest",
            [
                "WORKER_MODELS is set: HF_MODEL='org/repo' is ignored",
                "WORKER_MODELS is set: OLLAMA_MODEL='c' is ignored",
            ],
        ),
    ],
)
def test_which_variable_counts(asked: Asked, name: str, notes: list[str]) -> None:
    wanted, ignored = asked.resident()
    assert (wanted.name.short, ignored) == (name, notes)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(hf_model="smol"), "HF_MODEL: 'smol' is not"),
        (Asked(ollama_model="a b"), "OLLAMA_MODEL: '"),
        (Asked(models=("a/b/c/d",)), "WORKER_MODELS: '"),
    ],
)
def test_the_variable_that_is_wrong_is_named(asked: Asked, words: str) -> None:
    with pytest.raises(NameInvalid, match=words):
        asked.resident()


def test_other_models_of_the_list() -> None:
    asked = Asked(models=listed("smol:135m, hf.co/org/repo:Q4_0\n  qwen3:8b,"))
    assert [wanted.name.short for wanted in asked.others()] == ["hf.co/org/repo:Q4_0", "qwen3:8b"]


def test_a_file_that_is_asked_for_keeps_its_tag_whatever_it_is() -> None:
    wanted = from_repository("org/repo:q4_k_xl")
    assert wanted.named("UD-Q4_K_XL", "m-UD-Q4_K_XL").tag == "q4_k_xl"


@pytest.mark.parametrize(
    ("label", "stem", "tag"),
    [("UD-Q4_K_XL", "a/m", "ud-q4_k_xl"), ("", "a/My Model (v2)", "my-model-v2-"), ("", "-.m", "m")],
)
def test_the_tag_follows_from_what_was_chosen(label: str, stem: str, tag: str) -> None:
    assert from_repository("org/repo").named(label, stem).tag == tag


def test_a_shelf_stands_for_one_request() -> None:
    texts = ["org/repo", "org/repo:Q4_0", "org/repo:Q8_0", "Org/repo", "hf.co/org/repo/blob/main/x.gguf", "/data/repo"]
    shelves = [from_repository(text).shelf for text in texts]
    assert len(set(shelves)) == len(texts)
    assert from_repository("org/repo").shelf == shelves[0]
    assert all("/" not in shelf and len(shelf) < 100 for shelf in shelves)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/x/m.gguf", "Check the path"),
        ("s3://bucket/m.gguf", "Check the URL, AWS_ENDPOINT_URL_S3 for other storage than Amazon's"),
        ("hf.co/org/repo", "HF_TOKEN"),
        ("org/repo-GGUF", "set HF_MODEL=org/repo-GGUF"),
        ("smol", "network"),
    ],
)
def test_what_to_do_when_nobody_has_it(text: str, words: str) -> None:
    assert words in from_text(text).hint


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    for read in (from_text, from_repository):
        try:
            wanted = read(text)
        except ValueError:
            continue
        assert wanted.name == wanted.name.checked()
        assert "/" not in wanted.shelf
