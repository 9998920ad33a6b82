from __future__ import annotations

import re
from pathlib import Path

import pytest

from worker.config import load
from worker.environment import DEFAULT_COMMAND, ignored, server_command, server_environment, settings
from worker.errors import ConfigInvalid

ROOT = Path(__file__).parents[2]
CHOSEN = {setting.name: setting.value for setting in settings({})}
NAMES = pytest.mark.parametrize("name", CHOSEN)


@pytest.mark.parametrize(
    ("written", "argv"),
    [
        ("ollama serve", ["ollama", "serve"]),
        ("  ollama   serve ", ["ollama", "serve"]),
        ("'/opt/my server' serve --name 'a b'", ["/opt/my server", "serve", "--name", "a b"]),
        (r"a\ b", ["a b"]),
        ("env 'X=#1' ollama", ["env", "X=#1", "ollama"]),
    ],
)
def test_the_command_is_split_like_a_shell_does(written: str, argv: list[str]) -> None:
    assert server_command({"WORKER_SERVER_COMMAND": written}) == argv


@pytest.mark.parametrize("environ", [{}, {"WORKER_SERVER_COMMAND": ""}, {"WORKER_SERVER_COMMAND": " \t"}])
def test_without_a_command_it_is_ollama(environ: dict[str, str]) -> None:
    assert " ".join(server_command(environ)) == DEFAULT_COMMAND


@pytest.mark.parametrize("written", ["ollama 'serve", 'ollama "serve', "ollama \\"])
def test_a_command_that_cannot_be_split_is_explained(written: str) -> None:
    with pytest.raises(ConfigInvalid, match="WORKER_SERVER_COMMAND: ") as caught:
        server_command({"WORKER_SERVER_COMMAND": written})
    assert caught.value.hint


def test_every_choice_has_a_reason() -> None:
    chosen = settings({})
    assert len({setting.name for setting in chosen}) == len(chosen)
    assert all(setting.name.startswith("OLLAMA_") and setting.value and setting.reason for setting in chosen)
    assert not any(setting.from_user for setting in chosen)


@NAMES
def test_the_users_own_value_stands(name: str) -> None:
    own = "0" if CHOSEN[name] == "1" else "1"
    mine = {setting.name: setting for setting in settings({name: own})}
    assert (mine[name].value, mine[name].from_user) == (own, True)
    assert {other.name for other in mine.values() if other.from_user} == {name}
    assert server_environment({name: own}) == CHOSEN | {name: own}
    assert ignored({name: own}) == []


# The configuration refuses the one, and an address may be anything.
@pytest.mark.parametrize("name", sorted(CHOSEN.keys() - {"OLLAMA_HOST", "OLLAMA_NUM_PARALLEL"}))
def test_a_value_the_server_cannot_read_is_replaced_and_told(name: str) -> None:
    (replaced,) = (setting for setting in settings({name: "abc"}) if setting.name == name)
    assert (replaced.value, replaced.from_user) == (CHOSEN[name], False)
    assert replaced.reason.startswith("your 'abc' is n")
    assert server_environment({name: "abc"}) == CHOSEN
    (told,) = ignored({name: "abc"})
    assert told.startswith(f"{name}='abc' is ignored, because it is n")
    assert told.endswith(f": the worker sets {CHOSEN[name]}")


@NAMES
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_value_is_not_a_choice_of_the_user(name: str, blank: str) -> None:
    # Ollama takes a blank variable for an unset one, and would fall back to its own default instead of ours.
    assert settings({name: blank}) == settings({})
    assert server_environment({name: blank}) == CHOSEN


@pytest.mark.parametrize(
    "name",
    [
        "RUNPOD_WEBHOOK_GET_JOB",
        "RUNPOD_WEBHOOK_POST_OUTPUT",
        "RUNPOD_WEBHOOK_PING",
        "RUNPOD_AI_API_KEY",
        "RUNPOD_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "WORKER_API_KEY",
    ],
)
def test_the_server_does_not_learn_the_workers_secrets(name: str) -> None:
    assert name not in server_environment({name: "secret"})
    assert "secret" not in server_environment({name: "secret"}).values()


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_CACHE_PATH", "HTTPS_PROXY", "HF_TOKEN", "OLLAMA_MODELS", "OLLAMA_DEBUG"],
)
def test_the_server_keeps_what_it_needs(name: str) -> None:
    assert server_environment({name: "value"})[name] == "value"


def test_the_environment_given_is_left_as_it_is() -> None:
    environ = {"RUNPOD_AI_API_KEY": "secret", "OLLAMA_VULKAN": "", "PATH": "/bin"}
    before = dict(environ)
    server_environment(environ)
    settings(environ)
    assert environ == before


def test_worker_and_server_agree_on_what_both_read() -> None:
    # Both read the same two variables, each with a default of its own.
    queue = {"RUNPOD_WEBHOOK_GET_JOB": "http://platform/"}
    for environ in (queue, queue | {"OLLAMA_NUM_PARALLEL": "4", "OLLAMA_HOST": "127.0.0.1:7"}):
        config = load(environ)
        served = server_environment(environ)
        assert str(config.num_parallel) == served["OLLAMA_NUM_PARALLEL"]
        assert config.host == served["OLLAMA_HOST"]
        assert config.server_command.split() == server_command(environ)


def test_a_choice_for_our_patches_is_one_they_read() -> None:
    overlay = ROOT / "patches" / "overlay"
    read = {name for path in overlay.rglob("*.go") for name in re.findall(r'Getenv\("(\w+)"\)', path.read_text())}
    chosen = {"OLLAMA_SKIP_WARMUP", "OLLAMA_DISCOVER_ONCE", "OLLAMA_LOAD_POLL_MS"}
    chosen |= {"OLLAMA_CACHE_IS_FREE", "OLLAMA_EXACT_NAMES"}
    assert chosen <= set(CHOSEN)
    assert chosen <= read
