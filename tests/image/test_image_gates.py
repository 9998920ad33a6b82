"""What a build must refuse: an image that would fail, or be slow, on a GPU it is declared for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.image import bases
from tests.image.conftest import Build
from tests.image.engine import Engine

pytestmark = [pytest.mark.timeout(1200), pytest.mark.usefixtures("image")]


def refusal(build: Build, context: Path, *options: str) -> str:
    with pytest.raises(RuntimeError) as raised:
        build(context, "worker:refused", *options)
    return str(raised.value)


def test_a_target_without_native_code_is_refused(build: Build, context: Path) -> None:
    message = refusal(build, context, "--build-arg=CUDA_TARGETS=9.0 7.5")

    assert "problem: " in message
    assert "7.5" in message


def test_a_backend_that_is_only_ptx_is_refused(build: Build, context: Path) -> None:
    message = refusal(build, context, "--build-arg=CUDA_VARIANTS=cuda_v13")

    assert "problem: " in message
    assert "9.0" in message


@pytest.mark.parametrize(
    ("variants", "reason"),
    [
        ("cuda_v99", "cuda_v99 is not among cuda_v12/ cuda_v13/ mlx_cuda_v13/ vulkan/"),
        ("cuda_v12 vulkan", "vulkan is no CUDA variant"),
        ("mlx_cuda_v13", "mlx_cuda_v13 is no CUDA variant"),
    ],
)
def test_a_variant_that_is_not_to_be_had_is_refused(build: Build, context: Path, variants: str, reason: str) -> None:
    assert reason in refusal(build, context, f"--build-arg=CUDA_VARIANTS={variants}")


def test_a_llama_server_without_a_flag_we_pass_is_refused(
    docker: Engine, build: Build, context: Path, tmp_path: Path
) -> None:
    script = r"printf '#!/bin/sh\necho --other-flag\n' >/usr/lib/ollama/llama-server"
    text = f"FROM {bases.references()['OLLAMA']}\nRUN {script}\n"
    bases.build(docker, tmp_path / "old", text, "ollama/ollama:old", {})

    message = refusal(build, context, "--build-arg=OLLAMA=ollama/ollama:old")

    assert "this llama-server knows no --no-warmup" in message


def test_a_patch_that_does_not_fit_is_refused_before_anything_is_compiled(
    build: Build, context: Path, tmp_path: Path
) -> None:
    changed = Path(shutil.copytree(context, tmp_path / "changed"))
    first = changed / "patches" / (changed / "patches/series").read_text().split()[0]
    head, mark, hunk = first.read_text().partition("\n@@")
    first.write_text(head + mark + hunk.replace("\n ", "\n changed", 1))

    message = refusal(build, changed, "--target=ollama-build")

    assert f"{first.name} does not apply" in message
