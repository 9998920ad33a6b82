from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.names import ModelName, NameInvalid, NameMissing

PART = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("smol", "registry.ollama.ai/library/smol:latest", "smol:latest"),
        ("smol:135m", "registry.ollama.ai/library/smol:135m", "smol:135m"),
        (" smol ", "registry.ollama.ai/library/smol:latest", "smol:latest"),
        ("library/smol", "registry.ollama.ai/library/smol:latest", "smol:latest"),
        ("me/smol:x", "registry.ollama.ai/me/smol:x", "me/smol:x"),
        ("hf.co/me/smol.gguf:Q4_0", "hf.co/me/smol.gguf:Q4_0", "hf.co/me/smol.gguf:Q4_0"),
        ("localhost:5000/me/smol", "localhost:5000/me/smol:latest", "localhost:5000/me/smol:latest"),
        ("http://localhost:5000/me/smol:a", "localhost:5000/me/smol:a", "localhost:5000/me/smol:a"),
        ("smol:local", "registry.ollama.ai/library/smol:latest", "smol:latest"),
        ("smol:7b:local", "registry.ollama.ai/library/smol:7b", "smol:7b"),
    ],
)
def test_a_name_is_completed_and_shortened(text: str, full: str, short: str) -> None:
    name = ModelName.parse(text)
    assert (name.full, name.short) == (full, short)


@pytest.mark.parametrize("text", ["", "  "])
def test_no_name_is_not_a_wrong_name(text: str) -> None:
    with pytest.raises(NameMissing, match="model is required"):
        ModelName.parse(text)


@pytest.mark.parametrize(
    "text", ["a b", ":tag", "a:", "-a", ".a", "a/b/c/d", "na.me/space/../x", "me.x/y", "ü", "a" * 81, "a:b:c"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(NameInvalid, match="invalid model name"):
        ModelName.parse(text)


def test_the_manifest_lies_below_all_four_parts() -> None:
    assert ModelName.parse("hf.co/me/smol:Q4").path == Path("hf.co/me/smol/Q4")


@given(PART, PART, PART, PART)
def test_both_spellings_parse_back_to_the_same_name(host: str, namespace: str, model: str, tag: str) -> None:
    if tag == "local":
        return
    name = ModelName(host, namespace, model, tag)
    assert ModelName.parse(name.full) == name
    assert ModelName.parse(name.short) == name


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        path = ModelName.parse(text).path
    except ValueError:
        return
    # Whatever a client sends, the manifest stays below the store.
    assert not path.is_absolute()
    assert ".." not in path.parts
    assert len(path.parts) == 4
