"""How the worker serves: the server, the jobs, the limits, the ports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from worker.config.values import Count, Flag, GoFlag, Port, Seconds, Text, WebPath, setting, stripped
from worker.config.weights import Weights
from worker.environment import DEFAULT_COMMAND, DEFAULT_HOST

TAKE_VARIABLE = "RUNPOD_WEBHOOK_GET_JOB"


class Serving(Weights):
    """The settings of server, jobs and ports, beside those of the weights."""

    num_parallel: Count = setting(
        "OLLAMA_NUM_PARALLEL", default=1, text="Requests the server answers at once (its slots)."
    )
    max_concurrency: Count | None = setting(
        "MAX_CONCURRENCY", default=None, text="Jobs taken at once. Unset: `OLLAMA_NUM_PARALLEL`."
    )
    skip_projector: GoFlag = setting(
        "OLLAMA_SKIP_MMPROJ",
        default=False,
        text="Leave the model's projector out, which saves load time and memory; jobs with images are then refused.",
    )
    host: Text = setting(
        "OLLAMA_HOST",
        default=DEFAULT_HOST,
        text="Where the server listens, `address:port`; only the worker calls it.",
    )
    server_command: Text = setting(
        "WORKER_SERVER_COMMAND", default=DEFAULT_COMMAND, text="The command line that starts the server."
    )
    api_key: Text | None = setting(
        "WORKER_API_KEY",
        default=None,
        text="The key clients must send where the worker itself answers HTTP. Unset: none.",
        secret=True,
    )
    allow_cpu: Flag = setting(
        "WORKER_ALLOW_CPU",
        default=False,
        text="Serve even when the model is not wholly on a GPU. Unset: exit, because the CPU is 5 times slower.",
    )
    allow_model_admin: Flag = setting(
        "WORKER_ALLOW_MODEL_ADMIN",
        default=False,
        text="Let jobs call pull, push, create, copy and delete.",
    )
    openai_errors: Annotated[Literal["body", "fail"], BeforeValidator(stripped)] = setting(
        "WORKER_OPENAI_ERRORS",
        default="body",
        text="`body`: OpenAI clients get OpenAI's error object, the job is COMPLETED. `fail`: the job is FAILED.",
    )
    server_timeout_s: Seconds = setting(
        "WORKER_SERVER_TIMEOUT_S", default=120.0, text="Limit from the start of the server to its first HTTP 200."
    )
    weights_timeout_s: Seconds = setting(
        "WORKER_WEIGHTS_TIMEOUT_S", default=3600.0, text="Limit for getting the model's weights into the store."
    )
    load_timeout_s: Seconds = setting(
        "WORKER_LOAD_TIMEOUT_S", default=1800.0, text="Limit for loading the model into (video) memory."
    )
    stall_timeout_s: Seconds = setting(
        "WORKER_STALL_TIMEOUT_S", default=600.0, text="A job fails when the server sends nothing for this long."
    )
    drain_timeout_s: Seconds = setting(
        "WORKER_DRAIN_TIMEOUT_S",
        default=25.0,
        text="After SIGTERM, how long jobs may still finish; what is left goes back to the queue.",
    )
    delivery_timeout_s: Seconds = setting(
        "WORKER_DELIVERY_TIMEOUT_S",
        default=120.0,
        text="How long a result is offered to a platform that does not take it.",
    )
    start_ns: Annotated[int, Field(gt=0)] | None = setting(
        "WORKER_START_NS", default=None, text="Set by start.sh: when the container started, ns since 1970."
    )
    volume: Text = setting(
        "WORKER_VOLUME", default="/runpod-volume", text="Where the network volume is mounted; start.sh reads it too."
    )
    take_url: Text | None = setting(TAKE_VARIABLE, default=None, text="Set by Runpod: where jobs come from.")
    mode: Annotated[Literal["queue", "load_balancer", "local"], BeforeValidator(stripped)] = setting(
        "WORKER_MODE",
        default="queue",
        text="`queue`: take jobs. `load_balancer`: serve the API over HTTP, for an endpoint of that type. `local`: "
        "serve both without Runpod, as `docker run -p 8000:8000 IMAGE local` does.",
    )
    port: Port = setting(
        "PORT", default=80, text="With `load_balancer` and `local`: where the API is served. Unset with `local`: 8000."
    )
    port_health: Port | None = setting("PORT_HEALTH", default=None, text="Where health is served. Unset: `PORT`.")
    health_path: WebPath = setting(
        "HEALTH_CHECK_PATH",
        default="/ping",
        text="The path of health: 204 while booting, 200 once the model is resident, 503 when it is not.",
    )
    port_metrics: Port | None = setting(
        "PORT_METRICS",
        default=None,
        text="Where `/metrics` is served for Prometheus. Unset: on `PORT`, but with `queue` nowhere.",
    )
    cors_origins: Text | None = setting(
        "WORKER_CORS_ORIGINS",
        default=None,
        text="With `load_balancer`: web pages that may call the API, separated by commas, or `*`. Unset: none.",
    )
