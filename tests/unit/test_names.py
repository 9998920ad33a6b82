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
        (" me/smol:x ", "registry.ollama.ai/me/smol:x", "me/smol:x"),
        ("hf.co/me/smol.gguf:Q4_0", "hf.co/me/smol.gguf:Q4_0", "hf.co/me/smol.gguf:Q4_0"),
        ("http://localhost:5000/me/smol:a", "localhost:5000/me/smol:a", "localhost:5000/me/smol:a"),
        ("smol:7b:local", "registry.ollama.ai/library/smol:7b", "smol:7b"),
    ],
)
def test_a_name_is_completed_and_shortened(text: str, full: str, short: str) -> None:
    name = ModelName.parse(text)
    assert (name.full, name.short) == (full, short)


@pytest.mark.parametrize(("text", "kind"), [(" ", NameMissing), ("a b", NameInvalid), ("a/b/c/d", NameInvalid)])
def test_nonsense_is_refused(text: str, kind: type[ValueError]) -> None:
    with pytest.raises(kind):
        ModelName.parse(text)


@given(PART, PART, PART, PART.filter(lambda tag: tag != "local"))
def test_both_spellings_and_the_path_lead_back_to_the_name(host: str, namespace: str, model: str, tag: str) -> None:
    name = ModelName(host, namespace, model, tag)
    assert ModelName.parse(name.full) == ModelName.parse(name.short) == name
    assert ModelName(*name.path.parts) == name
    assert not name.path.is_absolute()
    assert ".." not in Path(name.path).parts
