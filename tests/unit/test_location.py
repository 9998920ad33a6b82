from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import tiny_gguf
from tests.fakes.repositories import folder
from worker import manifest
from worker.location import Absent, Located, locate, stamp
from worker.references import Wanted, from_repository, from_text
from worker.registration import Registration
from worker.store import Store


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny_gguf.write(tmp_path / "M-Q4_K_M.gguf", {"general.architecture": "llama"}, [("t", (2,), [1.0, 2.0])])


def registered(models: Path, name: Wanted, gguf: Path, **more: object) -> Store:
    store = Store(models)
    Registration(gguf, origin=stamp(gguf), **more).into(store, name.name)
    return store


def found(models: list[Path], wanted: Wanted) -> Located:
    located = locate(models, wanted)
    assert isinstance(located, Located), located
    return located


def absent(models: list[Path], wanted: Wanted) -> Absent:
    located = locate(models, wanted)
    assert isinstance(located, Absent), located
    return located


def test_the_first_store_that_has_it_whole_is_taken(tmp_path: Path, gguf: Path) -> None:
    stores = [tmp_path / name for name in ("baked", "container", "volume")]
    wanted = from_text("smol:135m")
    assert absent(stores, wanted).reasons == tuple(f"{models}: the model is not in the store" for models in stores)
    for models in stores:
        registered(models, wanted, gguf)
    next((stores[0] / "blobs").iterdir()).unlink()
    assert found(stores, wanted).models == stores[1]
    assert found(stores, wanted).name == "smol:135m"
    assert absent(stores[:1], wanted).reasons[0].endswith("is not in the store")


def test_no_store_is_said() -> None:
    assert absent([], from_text("smol")).reasons == ("there is no store",)


def test_a_broken_manifest_does_not_hide_another_store(tmp_path: Path, gguf: Path) -> None:
    wanted = from_text("smol")
    broken = manifest.path_of(tmp_path / "a", wanted.name)
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"{")
    registered(tmp_path / "b", wanted, gguf)
    assert found([tmp_path / "a", tmp_path / "b"], wanted).models == tmp_path / "b"
    assert "Expecting property name" in absent([tmp_path / "a"], wanted).reasons[0]


def test_the_spelling_of_the_store_counts(tmp_path: Path, gguf: Path) -> None:
    registered(tmp_path, from_text("hf.co/Org/Repo-GGUF:Q4_K_M"), gguf)
    assert found([tmp_path], from_text("hf.co/org/repo-gguf:q4_k_m")).name == "hf.co/Org/Repo-GGUF:Q4_K_M"


def test_without_a_quantization_the_one_taken_before_is_found_by_its_own_name(tmp_path: Path, gguf: Path) -> None:
    wanted = from_repository("org/repo")
    other = tiny_gguf.write(tmp_path / "M-Q8_0.gguf", {}, [])
    models = tmp_path / "models"
    registered(models, from_repository("org/repo:Q8_0"), other)
    assert isinstance(locate([models], wanted), Absent)
    store = registered(models, from_repository("org/repo:Q4_K_M"), gguf)
    made = manifest.read(models, from_repository("org/repo:Q4_K_M").name)
    assert made is not None
    store.publish(replace(made, name=wanted.name))
    assert found([models], wanted).name == "hf/org-repo:q4_k_m"


def test_the_same_quantization_of_another_file_is_another_model(tmp_path: Path, gguf: Path) -> None:
    models = tmp_path / "models"
    registered(models, from_repository("org/repo:Q4_K_M"), gguf, file="a/M-Q4_K_M.gguf")
    same = from_repository("hf.co/org/repo/blob/main/a/m-q4_k_m.gguf")
    other = from_repository("hf.co/org/repo/blob/main/b/M-Q4_K_M.gguf")
    assert found([models], same).name == "hf/org-repo:q4_k_m"
    assert "was registered from a/M-Q4_K_M.gguf" in absent([models], other).reasons[0]


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_file_that_changed_is_another_one(tmp_path: Path, gguf: Path, place: str) -> None:
    wanted = from_text(str(gguf if place == "file" else gguf.parent))
    models = tmp_path / "models"
    registered(models, wanted, gguf)
    assert found([models], wanted)
    os.utime(gguf, ns=(0, 5))
    assert f"{wanted.place} has changed since it was registered" in absent([models], wanted).reasons[0]
    # The store still has it when the file is taken away.
    gguf.unlink()
    if place == "file":
        assert found([models], wanted)


def test_another_template_or_projector_makes_it_unfit(tmp_path: Path, gguf: Path) -> None:
    models = tmp_path / "models"
    wanted = from_repository("org/repo:Q4_K_M")
    registered(models, wanted, gguf, template="{{ .Prompt }}")
    assert found([models], replace(wanted, template="{{ .Prompt }}"))
    for other in (wanted, replace(wanted, template="{{ .Response }}")):
        answer = absent([models], other)
        assert answer.reasons == (f"{models}: the model was registered with another template or projector",)
        assert answer.unfit == Located(models, answer.unfit.manifest)
        assert answer.unfit.name == "hf/org-repo:q4_k_m"
    # A plain name says nothing about how the model was made.
    assert found([models], from_text("hf/org-repo:q4_k_m"))


def test_a_projector_that_was_left_out_can_be_missed(tmp_path: Path, gguf: Path) -> None:
    models = tmp_path / "models"
    wanted = from_repository("org/repo:Q4_K_M")
    registered(models, wanted, gguf, skip_projector=True)
    assert found([models], replace(wanted, skip_projector=True))
    assert absent([models], wanted).unfit is not None
    registered(models, wanted, gguf, projector=folder(tmp_path, "mmproj-F16.gguf") / "mmproj-F16.gguf")
    assert found([models], wanted)
    assert absent([models], replace(wanted, skip_projector=True)).unfit is not None


def test_what_others_made_is_taken_as_it_is(tmp_path: Path, gguf: Path) -> None:
    models = tmp_path / "models"
    wanted = from_text("hf.co/org/repo:Q4_K_M")
    store = registered(models, wanted, gguf)
    made = manifest.read(models, wanted.name)
    assert made is not None
    store.publish(replace(made, notes={}))
    assert found([models], replace(wanted, template="{{ .Prompt }}", skip_projector=True))


def test_looking_imports_nothing_that_costs_seconds() -> None:
    code = "import sys; import worker.location, worker.references; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"pydantic", "requests", "http.client", "ssl", "asyncio", "email", "boto3"} & set(output.split())
