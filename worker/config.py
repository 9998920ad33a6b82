"""The worker's configuration: one frozen model made from the environment in one call, all problems at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from worker.environment import DEFAULT_COMMAND, DEFAULT_HOST
from worker.errors import ConfigInvalid


def _stripped(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_stripped), Field(min_length=1)]
Flag = Annotated[bool, BeforeValidator(_stripped)]
Count = Annotated[int, BeforeValidator(_stripped), Field(ge=1)]
# Ten years stand for "no limit": sockets and locks refuse a wait of more than some centuries.
Seconds = Annotated[float, BeforeValidator(_stripped), Field(gt=0, le=315_360_000)]
# Host, then port; an IPv6 address is in brackets when a port follows it.
_ADDRESS = re.compile(r"(\[[^]]*\]|[^:]*)(?::([^:]*))?")


def _env(*names: str, default: Any = ..., text: str) -> Any:
    """Declare a field read from the first of `names` that is set; `text` is its row in the README."""
    return Field(default, validation_alias=AliasChoices(*names), description=text)


class Config(BaseModel):
    """What the person who deployed the worker asked for.

    Names without a prefix are those of the stock worker and keep its meaning; the worker's own start with `WORKER_`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    model: Text = _env(
        "OLLAMA_MODEL",
        "OLLAMA_MODEL_NAME",
        default="llama3.2:3b",
        text="The model to keep resident, as Ollama names it (`qwen3:8b`, `hf.co/org/repo:Q4_K_M`).",
    )
    models: Text | None = _env(
        "OLLAMA_MODELS",
        default=None,
        text="The server's store. Unset: `/runpod-volume/ollama/models` if writable, else `~/.ollama/models`.",
    )
    num_parallel: Count = _env(
        "OLLAMA_NUM_PARALLEL", default=1, text="Requests the server answers at once (its slots)."
    )
    max_concurrency: Count | None = _env(
        "MAX_CONCURRENCY", default=None, text="Jobs taken at once. Unset: `OLLAMA_NUM_PARALLEL`."
    )
    host: Text = _env(
        "OLLAMA_HOST",
        default=DEFAULT_HOST,
        text="Where the server listens, `address:port`; only the worker calls it.",
    )
    server_command: Text = _env(
        "WORKER_SERVER_COMMAND", default=DEFAULT_COMMAND, text="The command line that starts the server."
    )
    api_key: Text | None = _env(
        "WORKER_API_KEY",
        default=None,
        text="The key clients must send where the worker itself answers HTTP. Unset: none.",
    )
    allow_cpu: Flag = _env(
        "WORKER_ALLOW_CPU",
        default=False,
        text="Serve even when the model is not wholly on a GPU. Unset: exit, because the CPU is 5 times slower.",
    )
    allow_model_admin: Flag = _env(
        "WORKER_ALLOW_MODEL_ADMIN",
        default=False,
        text="Let jobs call pull, push, create, copy and delete.",
    )
    openai_errors: Literal["body", "fail"] = _env(
        "WORKER_OPENAI_ERRORS",
        default="body",
        text="`body`: OpenAI clients get OpenAI's error object, the job is COMPLETED. `fail`: the job is FAILED.",
    )
    server_timeout_s: Seconds = _env(
        "WORKER_SERVER_TIMEOUT_S", default=120.0, text="Limit from the start of the server to its first HTTP 200."
    )
    weights_timeout_s: Seconds = _env(
        "WORKER_WEIGHTS_TIMEOUT_S", default=3600.0, text="Limit for getting the model's weights into the store."
    )
    load_timeout_s: Seconds = _env(
        "WORKER_LOAD_TIMEOUT_S", default=1800.0, text="Limit for loading the model into (video) memory."
    )
    stall_timeout_s: Seconds = _env(
        "WORKER_STALL_TIMEOUT_S", default=600.0, text="A job fails when the server sends nothing for this long."
    )
    drain_timeout_s: Seconds = _env(
        "WORKER_DRAIN_TIMEOUT_S",
        default=25.0,
        text="After SIGTERM, how long jobs may still finish; what is left goes back to the queue.",
    )
    delivery_timeout_s: Seconds = _env(
        "WORKER_DELIVERY_TIMEOUT_S",
        default=120.0,
        text="How long a result is offered to a platform that does not take it.",
    )
    start_ns: Annotated[int, Field(gt=0)] | None = _env(
        "WORKER_START_NS", default=None, text="Set by start.sh: when the container started, ns since 1970."
    )
    volume: Text = _env(
        "WORKER_VOLUME", default="/runpod-volume", text="Where the network volume is mounted; start.sh reads it too."
    )
    take_url: Text = _env("RUNPOD_WEBHOOK_GET_JOB", text="Set by Runpod: where jobs come from.")

    @property
    def concurrency(self) -> int:
        """Jobs taken at once."""
        return self.max_concurrency or self.num_parallel

    @property
    def server_url(self) -> str:
        """Base URL of the server as the worker calls it; OLLAMA_HOST is completed by Ollama's own rules."""
        scheme, mark, rest = self.host.strip("\"'").partition("://")
        address = (rest if mark else scheme).partition("/")[0]
        parts = _ADDRESS.fullmatch(address)
        name, port = (parts[1], parts[2] or "") if parts else (f"[{address}]", "")
        if not (port.isascii() and port.isdecimal() and int(port) <= 65535):  # noqa: PLR2004 - the last port
            port = {"http": "80", "https": "443"}.get(scheme, "11434") if mark else "11434"
        # These are addresses to listen on, not to call.
        every = name in {"", "0.0.0.0", "[::]"}  # noqa: S104 - compared, not bound
        return f"http://{'127.0.0.1' if every else name}:{port}"


def variables() -> dict[str, tuple[str, ...]]:
    """Return each field's name and the environment variables it is read from, in order of precedence."""
    names = {}
    for field_name, field in Config.model_fields.items():
        alias = field.validation_alias
        names[field_name] = tuple(str(c) for c in alias.choices) if isinstance(alias, AliasChoices) else ()
    return names


def load(environ: Mapping[str, str]) -> Config:
    """Make a Config from `environ`.

    A blank value counts as unset, as it does for Ollama.

    Raises:
        ConfigInvalid: one sentence that names every problem found.
    """
    known = {name for names in variables().values() for name in names}
    given = {name: value for name, value in environ.items() if value.strip()}
    problems = [_unknown(name, known) for name in sorted(given) if name.startswith("WORKER_") and name not in known]
    config = None
    try:
        config = Config.model_validate({name: given[name] for name in known & given.keys()})
    except ValidationError as exc:
        problems += [_problem(str(error["loc"][0]), error["type"], error["msg"]) for error in exc.errors()]
    if problems or config is None:
        raise ConfigInvalid("; ".join(problems), "Correct the endpoint's environment variables")
    return config


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name} is not a setting of this worker" + (f" (did you mean {near[0]}?)" if near else "")


def _problem(name: str, kind: str, message: str) -> str:
    if name == "RUNPOD_WEBHOOK_GET_JOB":
        return f"{name} is missing: this is not a Runpod worker (for a local run: `make run` or `make serve`)"
    if kind == "missing":
        return f"{name} is missing"
    return f"{name}: {message[:1].lower()}{message[1:]}"
