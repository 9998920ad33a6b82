"""When the runner's search for a placement is left out: only for one model that is there and fits one device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tiny_gguf import STRING, write
from worker import fit
from worker.device import Unanswered
from worker.environment import Setting, Unset, settings
from worker.local.engine.store import register_gguf
from worker.manifest import Layer, path_of, read
from worker.names import ModelName

GIB = 1 << 30
NAME = "llama:8b"
LLAMA_8B = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.context_length": 131072,
    "llama.embedding_length": 4096,
    "llama.feed_forward_length": 14336,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.vocab_size": 128256,
}


class Machine:
    """A store with one model, the server's environment, and the free memory of the devices."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        self.free: list[int] | str = [79 * GIB]
        # Only what CHOSEN has and what names the model; HOME, so that no store of this machine is looked into.
        self.served = {setting.name: setting.value for setting in settings({})} | {
            "OLLAMA_MODEL": NAME,
            "OLLAMA_MODELS": str(self.models),
            "HOME": str(folder),
            "WORKER_VOLUME": str(folder / "volume"),
        }

    def register(self, metadata: dict[str, Any] = LLAMA_8B) -> None:
        path = write(self.models.parent / "model.gguf", metadata, [])
        register_gguf(self.models, NAME, path)

    def add_layer(self, kind: str, size_bytes: int, content: bytes | None = None) -> None:
        """Put one more layer into the manifest; without content its blob is a hole."""
        name = ModelName.parse(NAME)
        found = read(self.models, name)
        assert found is not None
        layer = Layer(f"application/vnd.ollama.image.{kind}", f"sha256:{kind.encode().hex():0>64}", size_bytes)
        with layer.path(self.models).open("wb") as file:
            file.write(content or b"")
            file.truncate(size_bytes)
        path_of(self.models, name).write_bytes(replace(found, layers=(*found.layers, layer)).body())

    def parameters(self, **values: object) -> None:
        content = json.dumps(values).encode()
        self.add_layer("params", len(content), content)

    def told(self, **variables: str) -> Setting | Unset:
        def free_bytes() -> list[int]:
            if isinstance(self.free, str):
                raise Unanswered(self.free)
            return self.free

        return fit.setting(self.served | variables, free_bytes)

    def off(self, **variables: str) -> bool:
        told = self.told(**variables)
        assert told.name == "LLAMA_ARG_FIT"
        assert not isinstance(told, Setting) or (told.value, told.from_user) == ("off", False)
        return isinstance(told, Setting)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.register()
    return made


def test_a_model_that_fits_needs_no_search_and_the_numbers_say_so(machine: Machine) -> None:
    told = machine.told()
    assert isinstance(told, Setting)
    assert (told.name, told.value) == ("LLAMA_ARG_FIT", "off")
    assert "0.5 cache" in told.reason
    assert "84.8 GB free" in told.reason


def test_a_model_that_does_not_fit_keeps_the_search_and_the_numbers_say_so(machine: Machine) -> None:
    machine.free = [2 * GIB]
    told = machine.told()
    assert isinstance(told, Unset)
    assert "2.1 GB free" in told.reason


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"WORKER_ALLOW_CPU": "1"}, "WORKER_ALLOW_CPU is set"),
        ({"WORKER_PULL_ON_DEMAND": "yes"}, "WORKER_PULL_ON_DEMAND is set"),
        ({"WORKER_ALLOW_MODEL_ADMIN": "true"}, "WORKER_ALLOW_MODEL_ADMIN is set"),
        ({"WORKER_MODELS": f"{NAME}, other:1b"}, "WORKER_MODELS names other models too"),
        ({"OLLAMA_MAX_LOADED_MODELS": "2"}, "OLLAMA_MAX_LOADED_MODELS lets models share the device"),
        ({"LLAMA_ARG_N_GPU_LAYERS": "20"}, "LLAMA_ARG_N_GPU_LAYERS is set"),
        ({"LLAMA_ARG_FIT_TARGET": "4096"}, "LLAMA_ARG_FIT_TARGET is set"),
        ({"OLLAMA_MODEL": "absent:1b"}, "the model is not on this disk yet"),
        ({"OLLAMA_MODEL": "not a name"}, "the model's name cannot be understood"),
        ({"OLLAMA_KV_CACHE_TYPE": "q3_9"}, "the size of OLLAMA_KV_CACHE_TYPE=q3_9 is not known"),
        ({"OLLAMA_CONTEXT_LENGTH": "0"}, "num_ctx=0 is no number to count with"),
        ({"OLLAMA_NUM_PARALLEL": "auto"}, "OLLAMA_NUM_PARALLEL=auto is no number to count with"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "CUDA_VISIBLE_DEVICES=0,1 is set"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= is set"),
    ],
)
def test_what_leaves_it_undecided_keeps_the_search(machine: Machine, variables: dict[str, str], why: str) -> None:
    told = machine.told(**variables)
    assert isinstance(told, Unset)
    assert told.reason == f"the runner looks for a placement: {why}"


@pytest.mark.parametrize(
    "variables",
    [
        {"WORKER_ALLOW_CPU": "0"},
        {"WORKER_PULL_ON_DEMAND": " false "},
        {"WORKER_MODELS": NAME},
        {"LLAMA_ARG_THREADS": "4"},
        {"LLAMA_ARG_LOAD_MODE": "none"},
        {"OLLAMA_KV_CACHE_TYPE": "Q8_0"},
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-4000-8000-000000000000"},
    ],
)
def test_what_changes_nothing_leaves_the_search_out(machine: Machine, variables: dict[str, str]) -> None:
    assert machine.off(**variables)


@pytest.mark.parametrize(
    ("free", "why"),
    [
        ([79 * GIB, 79 * GIB], "there are 2 devices to spread it over"),
        ([], "no device is visible"),
        ("GPU 0 is split by MIG", "GPU 0 is split by MIG"),
    ],
)
def test_only_one_device_that_tells_its_memory_will_do(machine: Machine, free: list[int] | str, why: str) -> None:
    machine.free = free
    assert machine.told() == Unset("LLAMA_ARG_FIT", f"the runner looks for a placement: {why}")


@pytest.mark.parametrize(
    ("variables", "free_gib", "off"),
    [
        # What is in the cache and in a batch grows with each of these.
        ({}, 5, True),
        ({"OLLAMA_CONTEXT_LENGTH": "65536"}, 5, False),
        ({"OLLAMA_CONTEXT_LENGTH": "65536"}, 14, True),
        ({"OLLAMA_CONTEXT_LENGTH": "65536", "OLLAMA_KV_CACHE_TYPE": "q8_0"}, 10, True),
        ({"OLLAMA_CONTEXT_LENGTH": "65536"}, 10, False),
        ({"OLLAMA_NUM_PARALLEL": "16"}, 5, False),
        ({"OLLAMA_FLASH_ATTENTION": "0"}, 3.2, False),
        ({}, 3.2, True),
    ],
)
def test_the_servers_settings_are_counted(
    machine: Machine, variables: dict[str, str], free_gib: float, *, off: bool
) -> None:
    machine.free = [int(free_gib * GIB)]
    assert machine.off(**variables) == off


def test_a_models_own_parameters_outrank_the_server(machine: Machine) -> None:
    machine.free = [5 * GIB]
    machine.parameters(num_ctx=65536, temperature=0.6)
    assert not machine.off()
    machine.free = [14 * GIB]
    assert machine.off(OLLAMA_CONTEXT_LENGTH="131072")


@pytest.mark.parametrize("value", [{"num_gpu": 20}, {"main_gpu": 1}])
def test_a_model_that_is_placed_by_its_publisher_is_left_alone(machine: Machine, value: dict[str, int]) -> None:
    machine.parameters(**value)
    assert machine.told() == Unset(
        "LLAMA_ARG_FIT", "the runner looks for a placement: the model's own parameters place it"
    )


def test_weights_projector_and_adapters_are_counted(machine: Machine) -> None:
    machine.free = [7 * GIB]
    assert machine.off()
    machine.add_layer("projector", 4 * GIB)
    assert not machine.off()
    assert machine.off(OLLAMA_SKIP_MMPROJ="1")
    machine.add_layer("adapter", 5 * GIB)
    assert not machine.off(OLLAMA_SKIP_MMPROJ="1")


def test_a_draft_is_not_estimated_unless_it_is_left_out(machine: Machine) -> None:
    machine.parameters(draft_num_predict=4)
    assert isinstance(told := machine.told(), Unset)
    assert "draft" in told.reason
    assert machine.off(OLLAMA_DISABLE_MTP="1")


def test_a_projector_inside_the_weights_needs_room_to_run(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.register(LLAMA_8B | {"llama.vision.block_count": 27})
    machine.free = [int(3.5 * GIB)]
    assert not machine.off()
    assert machine.off(OLLAMA_SKIP_MMPROJ="1")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({key: value for key, value in LLAMA_8B.items() if "block_count" not in key}, "does not say llama block_count"),
        ({"general.license": (STRING, ["x" * 600] * 1000)} | LLAMA_8B, "unreadable metadata"),
    ],
)
def test_a_model_that_does_not_tell_keeps_the_search(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    machine = Machine(tmp_path)
    machine.register(metadata)
    told = machine.told()
    assert isinstance(told, Unset)
    assert words in told.reason


def test_damaged_parameters_keep_the_search(machine: Machine) -> None:
    machine.add_layer("params", 3, b"{x}")
    assert isinstance(machine.told(), Unset)
