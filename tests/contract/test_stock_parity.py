"""What an endpoint of the stock worker relies on, row by row of what its README and form promise about models.

The number in a test's name is the row's in that list: 3 precedence, 4 forms of HF_MODEL, 5 matching of quantizations,
6 none given, 7 HF_MODEL_FILE, 8 registered name, 9 casing, 10 model store, 11 import, 12 disk, 13 place of the store,
14 projector, 15 template, 16 video memory, 17 variables, 19 failing pull. The others are about jobs and the form.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fakes.repositories import Heard, cache, folder
from worker import manifest
from worker.config import load, variables
from worker.environment import settings
from worker.errors import GpuUnusable, WeightsUnavailable
from worker.names import ModelName
from worker.outset import outset
from worker.references import Wanted, from_repository, from_text
from worker.residency import Resident, require_gpu
from worker.selection import NoMatch, RepoFile, select
from worker.sources import chain
from worker.sources.local import Local
from worker.sources.model_store import ModelStore
from worker.sources.registry import Registry
from worker.store import Store

ROOT = Path(__file__).parents[2]
TAKE = {"RUNPOD_WEBHOOK_GET_JOB": "http://platform/$ID"}
FILES = [
    RepoFile("M-IQ4_XS.gguf", 40),
    RepoFile("M-Q2_K.gguf", 30),
    RepoFile("M-Q4_K_M.gguf", 50),
    RepoFile("M-Q4_K_S.gguf", 45),
    RepoFile("M-Q4_0.gguf", 44),
    RepoFile("mmproj-F16.gguf", 1),
]
SETTINGS = [
    "HF_MODEL",
    "HF_QUANTIZATION",
    "HF_MODEL_FILE",
    "HF_TOKEN",
    "OLLAMA_MODEL",
    "OLLAMA_MODELS",
    "RUNPOD_MODEL_CACHE_DIR",
    "OLLAMA_TEMPLATE",
    "OLLAMA_KEEP_ALIVE",
    "OLLAMA_LOAD_TIMEOUT",
    "OLLAMA_CONTEXT_LENGTH",
    "OLLAMA_KV_CACHE_TYPE",
    "OLLAMA_FLASH_ATTENTION",
    "OLLAMA_NUM_PARALLEL",
    "OLLAMA_MAX_LOADED_MODELS",
    "OLLAMA_MAX_QUEUE",
    "OLLAMA_SCHED_SPREAD",
    "OLLAMA_DEBUG",
]


def wanted(**environ: str) -> Wanted:
    return outset(environ).wanted


def chosen(**options: str) -> str:
    return select("org/M", FILES, **options).model.stem


def brought(asked: Wanted, place: Path, source: object, heard: Heard | None = None) -> chain.Placed:
    return chain.place(asked, [source], Store(place), (heard or Heard()).listener)


def test_row_3_hf_model_outranks_ollama_model_and_says_so() -> None:
    assert wanted().name.short == "llama3.2:3b"
    assert wanted(OLLAMA_MODEL="a:1b").name.short == "a:1b"
    both = outset({"HF_MODEL": "org/repo", "OLLAMA_MODEL": "a:1b"})
    assert both.wanted.repo == "org/repo"
    assert both.notes == ("HF_MODEL is set: OLLAMA_MODEL='a:1b' is ignored",)


@pytest.mark.parametrize(
    "form",
    [
        "org/Repo-GGUF:Q4_K_M",
        "hf.co/org/Repo-GGUF:Q4_K_M",
        "huggingface.co/org/Repo-GGUF:Q4_K_M",
        "https://huggingface.co/org/Repo-GGUF:Q4_K_M",
        " https://huggingface.co/org/Repo-GGUF:q4_k_m ",
    ],
)
def test_row_4_every_form_of_a_repository_is_the_same_one(form: str) -> None:
    found = wanted(HF_MODEL=form)
    assert (found.repo, found.quantization.lower()) == ("org/Repo-GGUF", "q4_k_m")
    assert found.name == from_repository("org/Repo-GGUF:Q4_K_M").name


def test_row_4_a_repository_without_gguf_is_refused_with_what_it_has() -> None:
    with pytest.raises(NoMatch, match=r"model\.safetensors"):
        select("org/M", [RepoFile("model.safetensors", 5), RepoFile("config.json", 1)])


@pytest.mark.parametrize(("asked", "file"), [("q4_k_s", "M-Q4_K_S"), ("Q4_K_M", "M-Q4_K_M"), ("iq4_xs", "M-IQ4_XS")])
def test_row_5_a_quantization_is_matched_whole_and_without_regard_to_case(asked: str, file: str) -> None:
    assert chosen(quantization=asked) == file


@pytest.mark.parametrize("asked", ["Q4", "K_M", "Q8_0", "Q4_K"])
def test_row_5_none_or_several_are_refused_with_all_there_are(asked: str) -> None:
    with pytest.raises(NoMatch) as caught:
        chosen(quantization=asked)
    assert all(label in str(caught.value) for label in ("IQ4_XS", "Q2_K", "Q4_K_M", "Q4_K_S", "Q4_0"))


def test_row_6_without_a_quantization_it_is_q4_k_m_else_the_smallest_and_it_is_said() -> None:
    assert chosen() == "M-Q4_K_M"
    others = select("org/M", [file for file in FILES if "K_M" not in file.path])
    assert others.model.stem == "M-Q2_K"
    assert others.notes


def test_row_7_a_named_file_outranks_the_quantization_and_a_part_stands_for_all() -> None:
    found = wanted(HF_MODEL="org/M", HF_QUANTIZATION="Q8_0", HF_MODEL_FILE="M-Q2_K.gguf")
    assert found.file == "M-Q2_K.gguf"
    assert chosen(quantization="Q8_0", file="M-Q2_K.gguf") == "M-Q2_K"
    parts = [RepoFile(f"big-0000{n}-of-00003.gguf", 9) for n in (1, 2, 3)]
    assert select("org/M", parts, file=parts[1].path).model.parts == tuple(parts)


def test_row_8_the_registered_name_is_org_repo_and_quantization_in_lower_case(tmp_path: Path) -> None:
    cache(tmp_path / "cache", "Org/My-Repo", "M-Q4_K_M.gguf", "M-Q2_K.gguf")
    placed = brought(wanted(HF_MODEL="Org/My-Repo"), tmp_path / "models", ModelStore(tmp_path / "cache"))
    assert placed.name == "hf/org-my-repo:q4_k_m"
    name = ModelName.parse("hf/org-my-repo:q4_k_m")
    assert (tmp_path / "models/manifests" / name.path).is_file()


@pytest.mark.parametrize("there", ["models--Org--Repo", "models--org--repo", "models--ORG--repo"])
def test_row_9_the_platform_may_write_the_repository_in_any_case(tmp_path: Path, there: str) -> None:
    made = cache(tmp_path / "cache", "Org/Repo", "M-Q4_K_M.gguf", links=False)
    made.rename(tmp_path / "cache" / there)
    placed = brought(wanted(HF_MODEL="Org/Repo"), tmp_path / "models", ModelStore(tmp_path / "cache"))
    assert placed.source == "model_store"


def test_row_10_the_model_store_is_where_the_stock_worker_looks_for_it() -> None:
    assert load(TAKE).model_cache == "/runpod-volume/huggingface-cache/hub"
    assert load({**TAKE, "RUNPOD_MODEL_CACHE_DIR": "/cache"}).model_cache == "/cache"


def test_row_11_a_file_on_the_same_disk_is_linked_and_not_copied(tmp_path: Path) -> None:
    made = cache(tmp_path / "cache", "org/repo", "M-Q4_K_M.gguf")
    placed = brought(wanted(HF_MODEL="org/repo"), tmp_path / "models", ModelStore(tmp_path / "cache"))
    weights = placed.manifest.layer("model")
    assert weights is not None
    assert weights.path(placed.models).samefile(next((made / "blobs").iterdir()))


def test_row_12_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache(tmp_path / "cache", "org/repo", "M-Q4_K_M.gguf", links=False)
    nearly_full = SimpleNamespace(f_bavail=1, f_frsize=4096)
    monkeypatch.setattr("worker.storage.os.statvfs", lambda _: nearly_full)
    monkeypatch.setattr("worker.store.os.link", refuse)
    monkeypatch.setattr("worker.store._clone", refuse)
    with pytest.raises(WeightsUnavailable, match=r"0\.00 GB free, 0\.0\d GB are needed"):
        brought(wanted(HF_MODEL="org/repo"), tmp_path / "models", ModelStore(tmp_path / "cache"))
    assert not list((tmp_path / "models").rglob("*sha256*"))


def refuse(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


@pytest.mark.parametrize("writable", [True, False])
def test_row_13_the_store_is_on_the_volume_if_that_can_be_written(tmp_path: Path, writable: bool) -> None:  # noqa: FBT001 - a parameter
    volume = tmp_path / "volume"
    if writable:
        volume.mkdir()
    else:
        volume.write_text("not a folder")
    script = f'source "{ROOT}/start.sh"; WORKER_VOLUME={volume}; HOME={tmp_path}/home; store; echo "$OLLAMA_MODELS"'
    environ = {name: value for name, value in os.environ.items() if name != "OLLAMA_MODELS"}
    done = subprocess.run(
        ["/bin/bash", "-c", script], capture_output=True, text=True, check=True, env=environ, timeout=30
    )
    expected = volume / "ollama/models" if writable else tmp_path / "home/.ollama/models"
    assert done.stdout.strip() == str(expected)


def test_row_14_a_projector_is_never_taken_for_the_model_and_comes_along_unless_it_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(NoMatch):
        select("org/M", [RepoFile("mmproj-F16.gguf", 1)])
    cache(tmp_path / "cache", "org/repo", "M-Q4_K_M.gguf", "mmproj-F16.gguf")
    source = ModelStore(tmp_path / "cache")
    whole = brought(wanted(HF_MODEL="org/repo"), tmp_path / "a", source)
    assert whole.manifest.layer("projector") is not None
    text_only = brought(wanted(HF_MODEL="org/repo", OLLAMA_SKIP_MMPROJ="1"), tmp_path / "b", source)
    assert text_only.manifest.layer("projector") is None


def test_row_15_a_template_is_registered_and_its_absence_is_told(tmp_path: Path) -> None:
    place = str(folder(tmp_path / "files", "T-Q8_0.gguf") / "T-Q8_0.gguf")
    dressed = brought(wanted(OLLAMA_MODEL=place, OLLAMA_TEMPLATE="{{ .Prompt }}"), tmp_path / "models", Local())
    template = dressed.manifest.layer("template")
    assert template is not None
    assert template.path(dressed.models).read_text() == "{{ .Prompt }}"
    # Another template is another model, from the same weights.
    plain = brought(wanted(OLLAMA_MODEL=place), tmp_path / "models", Local())
    assert plain.manifest.layer("template") is None
    assert plain.manifest.layer("model") == dressed.manifest.layer("model")


def test_row_16_a_model_that_spills_to_the_cpu_is_refused_with_numbers_and_not_served_slowly() -> None:
    with pytest.raises(GpuUnusable, match=r"only 75% of 'm' is on a GPU \(75 of 100 bytes\)"):
        require_gpu(Resident("m", 100, 75, 4096))


def test_row_17_every_variable_keeps_its_name_and_reaches_whoever_reads_it() -> None:
    ours = {name for names in variables().values() for name in names} | {setting.name for setting in settings({})}
    handed_on = {setting.name: setting for setting in settings(dict.fromkeys(SETTINGS, "1"))}
    for name in set(SETTINGS) & set(handed_on):
        assert (handed_on[name].value, handed_on[name].from_user) == ("1", True)
    # The server inherits what only it reads.
    assert set(SETTINGS) - ours == {"OLLAMA_DEBUG", "OLLAMA_KV_CACHE_TYPE", "OLLAMA_MAX_QUEUE", "OLLAMA_SCHED_SPREAD"}


def test_row_19_a_pull_that_fails_ends_the_start_with_the_reason_instead_of_serving_nothing(tmp_path: Path) -> None:
    gone = Registry("http://127.0.0.1:9", lambda: None, limit_s=5.0)
    asked = replace(from_text("absent:1b"), name=ModelName.parse("127.0.0.1:9/library/absent:1b"))
    with pytest.raises(WeightsUnavailable, match=r"registry: no server answers at http://127\.0\.0\.1:9") as caught:
        brought(asked, tmp_path / "models", gone)
    assert caught.value.hint
    assert not list(manifest.every(tmp_path / "models"))
