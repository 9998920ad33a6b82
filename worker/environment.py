"""The server's command and environment: what we choose for it, why, and what the user chose instead.

Nothing here needs Config: the server is started before anything as slow to import as pydantic.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from worker import go_values
from worker.errors import ConfigInvalid
from worker.go_values import GO_TRUE

DEFAULT_COMMAND = "ollama serve"
DEFAULT_HOST = "127.0.0.1:11434"
# The variable that names one CUDA backend to the server, and the file that makes a directory a CUDA backend.
BACKEND_VARIABLE = "OLLAMA_LLM_LIBRARY"
BACKEND_FILE = "libggml-cuda.so"
# What is set only where it is right for the machine: the runner's threads, and its search for a placement.
THREADS_VARIABLE = "LLAMA_ARG_THREADS"
FIT_VARIABLE = "LLAMA_ARG_FIT"
# The platform's key and its job addresses are the worker's business, not the server's.
_WITHHELD_PREFIXES = (
    "RUNPOD_WEBHOOK_",
    "RUNPOD_AI_API_KEY",
    "RUNPOD_API_KEY",
    "WORKER_API_KEY",
    "AWS_SECRET",
    "AWS_SESSION",
)


@dataclass(frozen=True)
class Setting:
    """One variable of the server: its value, why we set it, and whether the user's own value stands."""

    name: str
    value: str
    reason: str
    from_user: bool = False


class Unset(NamedTuple):
    """A variable of the server that is left alone on this machine, and why."""

    name: str
    reason: str


_CHOSEN = (
    ("OLLAMA_HOST", DEFAULT_HOST, "only the worker talks to the server"),
    ("OLLAMA_KEEP_ALIVE", "-1", "the model stays resident: an idle worker is ended by the platform, not by a timer"),
    ("OLLAMA_CONTEXT_LENGTH", "4096", "left to itself Ollama takes 262144 on an 80 GB card and fills it with cache"),
    ("OLLAMA_NUM_PARALLEL", "1", "one slot has the whole context; more slots multiply it"),
    ("OLLAMA_MAX_LOADED_MODELS", "1", "a second model would push the resident one out of video memory"),
    ("OLLAMA_LOAD_TIMEOUT", "30m", "uploading weights prints nothing, and silence counts as a stall"),
    ("OLLAMA_FLASH_ATTENTION", "1", "settles what would otherwise be probed"),
    ("OLLAMA_NOPRUNE", "1", "pruning reads every blob at start and may delete another worker's on a shared volume"),
    ("OLLAMA_NO_CLOUD", "1", "no calls to the outside during start"),
    ("OLLAMA_VULKAN", "0", "CUDA wins anyway; probing Vulkan starts three more processes"),
    ("OLLAMA_SKIP_WARMUP", "1", "the warm-up decode delays the first token and the first job does the same work"),
    ("OLLAMA_DISCOVER_ONCE", "1", "the second look at each GPU changes nothing for CUDA"),
    ("OLLAMA_LOAD_POLL_MS", "20", "a loaded runner is noticed after 20 ms instead of up to 250"),
    ("OLLAMA_EXACT_NAMES", "1", "each request would read every manifest of the store, which may be a network volume"),
    ("OLLAMA_CACHE_IS_FREE", "1", "a model read ahead into the page cache would count as used memory and cost mmap"),
)


def server_command(environ: Mapping[str, str]) -> list[str]:
    """Return the server's argv from WORKER_SERVER_COMMAND; raise ConfigInvalid when it is no command line."""
    try:
        return shlex.split(environ.get("WORKER_SERVER_COMMAND", "")) or shlex.split(DEFAULT_COMMAND)
    except ValueError as exc:
        raise ConfigInvalid(f"WORKER_SERVER_COMMAND: {exc}", "Quote it as for a shell") from exc


def own(environ: Mapping[str, str], name: str) -> Setting | None:
    """Return the user's own value of a variable, which always stands, or None where there is none."""
    value = environ.get(name, "")
    return Setting(name, value, "set by you", from_user=True) if value.strip() else None


def is_on(environ: Mapping[str, str], name: str) -> bool:
    """Return whether a variable is true as the server reads it."""
    return environ.get(name, "").strip() in GO_TRUE


def settings(environ: Mapping[str, str]) -> list[Setting]:
    """Return every variable we choose for the server, the user's own value winning where there is one it can read."""
    return [_chosen(own(environ, name), Setting(name, value, reason)) for name, value, reason in _CHOSEN]


def ignored(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each value of the user's that the server cannot read, with what counts instead."""
    return go_values.notes(environ, {name: value for name, value, _ in _CHOSEN})


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the server: what the worker has, less its secrets, plus the settings."""
    inherited = {name: value for name, value in environ.items() if not name.startswith(_WITHHELD_PREFIXES)}
    return inherited | {setting.name: setting.value for setting in settings(environ)}


def _chosen(mine: Setting | None, ours: Setting) -> Setting:
    if mine is None:
        return ours
    wrong = go_values.fault(mine.name, mine.value)
    # The server's own default would be another one than ours, and it would say nothing.
    return replace(ours, reason=f"your {mine.value!r:.80} is {wrong}; {ours.reason}") if wrong else mine
