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


TAKE_VARIABLE = "RUNPOD_WEBHOOK_GET_JOB"
Text = Annotated[str, BeforeValidator(_stripped), Field(min_length=1)]
Flag = Annotated[bool, BeforeValidator(_stripped)]

# The server reads its truth values with Go's words, fewer than pydantic's; a value only one of them understands would
# make the worker believe what is not so.
_GO_WORDS = {"1": True, "t": True, "T": True, "true": True, "True": True, "TRUE": True} | {
    "0": False, "f": False, "F": False, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


def _as_go(value: object) -> object:
    word = str(value).strip()
    if word not in _GO_WORDS:
        raise ValueError("should be 1 or 0")
    return _GO_WORDS[word]


GoFlag = Annotated[bool, BeforeValidator(_as_go)]
Port = Annotated[int, BeforeValidator(_stripped), Field(ge=1, le=65535)]
Path = Annotated[str, BeforeValidator(_stripped), Field(pattern=r"^/[^\s?#{}]*$")]
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
    skip_projector: GoFlag = _env(
        "OLLAMA_SKIP_MMPROJ",
        default=False,
        text="Leave the model's projector out, which saves load time and memory; jobs with images are then refused.",
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
    openai_errors: Annotated[Literal["body", "fail"], BeforeValidator(_stripped)] = _env(
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
    take_url: Text | None = _env(TAKE_VARIABLE, default=None, text="Set by Runpod: where jobs come from.")
    mode: Annotated[Literal["queue", "load_balancer"], BeforeValidator(_stripped)] = _env(
        "WORKER_MODE",
        default="queue",
        text="`queue`: take jobs. `load_balancer`: serve the API over HTTP, for an endpoint of that type.",
    )
    port: Port = _env("PORT", default=80, text="With `load_balancer`: where the API is served.")
    port_health: Port | None = _env("PORT_HEALTH", default=None, text="Where health is served. Unset: `PORT`.")
    health_path: Path = _env(
        "HEALTH_CHECK_PATH",
        default="/ping",
        text="The path of health: 204 while booting, 200 once the model is resident, 503 when it is not.",
    )
    port_metrics: Port | None = _env(
        "PORT_METRICS",
        default=None,
        text="Where `/metrics` is served for Prometheus. Unset: with `load_balancer` on `PORT`, else nowhere.",
    )
    cors_origins: Text | None = _env(
        "WORKER_CORS_ORIGINS",
        default=None,
        text="With `load_balancer`: web pages that may call the API, separated by commas, or `*`. Unset: none.",
    )

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
    # A load balancer calls the worker: there is no queue to take jobs from.
    if TAKE_VARIABLE not in given and given.get("WORKER_MODE", "queue").strip() == "queue":
        told = "this is not a Runpod worker (for a local run: `make run` or `make serve`)"
        problems.append(f"{TAKE_VARIABLE} is missing: {told}")
    # Pulling the default model instead of what was asked for would be the costlier answer.
    problems += [
        f"{name} is not read yet; name the file as Ollama does: OLLAMA_MODEL=hf.co/org/repo:Q4_K_M"
        for name in ("HF_MODEL", "HF_QUANTIZATION", "HF_MODEL_FILE")
        if name in given
    ]
    config = None
    try:
        config = Config.model_validate({name: given[name] for name in known & given.keys()})
    except ValidationError as exc:
        problems += [_problem(str(error["loc"][0]), error["msg"]) for error in exc.errors()]
    if problems or config is None:
        raise ConfigInvalid("; ".join(problems), "Correct the endpoint's environment variables")
    return config


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name} is not a setting of this worker" + (f" (did you mean {near[0]}?)" if near else "")


def _problem(name: str, message: str) -> str:
    return f"{name}: {message[:1].lower()}{message[1:]}"
