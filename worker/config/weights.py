"""What is served, where its weights may come from, and how they are made ready."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from worker.config.values import Flag, List, Template, Text, as_list, setting, stripped
from worker.references import DEFAULT_MODEL

Source = Literal["local", "volume", "model_store", "object_store", "hub", "registry"]


class Weights(BaseModel):
    """The settings of models, sources and caches."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    model: Text = setting(
        "OLLAMA_MODEL",
        "OLLAMA_MODEL_NAME",
        default=DEFAULT_MODEL,
        text="The model to keep resident: `qwen3:8b`, `hf.co/org/repo:Q4_K_M`, a path to a GGUF, an `s3://` URL.",
    )
    hf_model: Text | None = setting(
        "HF_MODEL",
        default=None,
        text="A Hugging Face repository of GGUF files (`org/repo`, a URL, with `:quant`); outranks `OLLAMA_MODEL`.",
    )
    hf_quantization: Text | None = setting(
        "HF_QUANTIZATION",
        default=None,
        text="Which quantization of `HF_MODEL`. Unset: `Q4_K_M` if there is one, else the smallest.",
    )
    hf_model_file: Text | None = setting(
        "HF_MODEL_FILE", default=None, text="Which file of `HF_MODEL`, exactly; outranks `HF_QUANTIZATION`."
    )
    hf_token: Text | None = setting(
        "HF_TOKEN", default=None, text="The key to gated and private repositories.", secret=True
    )
    hf_endpoint: Text = setting(
        "HF_ENDPOINT", default="https://huggingface.co", text="The hub's address, for those who have a mirror."
    )
    model_cache: Text = setting(
        "RUNPOD_MODEL_CACHE_DIR",
        default="/runpod-volume/huggingface-cache/hub",
        text="Where Runpod mounts the model that was chosen for the endpoint, as a Hugging Face cache.",
    )
    template: Template | None = setting(
        "OLLAMA_TEMPLATE",
        default=None,
        text="A prompt template in Go's form for what is registered from a repository or a place. Unset: the GGUF's.",
    )
    model_list: List = setting(
        "WORKER_MODELS",
        default=(),
        text="Several models, separated by commas: the first is resident and outranks all others, the rest on demand.",
    )
    pull_on_demand: Flag = setting(
        "WORKER_PULL_ON_DEMAND",
        default=False,
        text="Bring a model that a job names and the worker has not got. Unset: such jobs fail with what there is.",
    )
    sources: Annotated[tuple[Source, ...], BeforeValidator(as_list)] = setting(
        "WORKER_SOURCES",
        default=(),
        text="Ask these only, in this order: `local volume model_store object_store hub registry`. Unset: the fastest.",
    )
    object_store: Annotated[Text, Field(pattern=r"^s3://[^/]+")] | None = setting(
        "WORKER_OBJECT_STORE",
        default=None,
        text="An `s3://bucket/prefix` that mirrors repositories as `org/repo/file.gguf`.",
    )
    aws_endpoint: Text | None = setting(
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", default=None, text="The address of S3-compatible storage."
    )
    aws_region: Text = setting("AWS_REGION", "AWS_DEFAULT_REGION", default="us-east-1", text="Its region.")
    aws_key_id: Text | None = setting("AWS_ACCESS_KEY_ID", default=None, text="The account there. Unset: anonymous.")
    aws_secret: Text | None = setting("AWS_SECRET_ACCESS_KEY", default=None, text="The account's secret.", secret=True)
    aws_session: Text | None = setting(
        "AWS_SESSION_TOKEN", default=None, text="The session of a temporary account.", secret=True
    )
    hub_transfer: Flag = setting(
        "WORKER_HUB_TRANSFER",
        default=False,
        text="Download with `huggingface_hub`'s accelerated transfer, which cannot resume, instead of ranged reads.",
    )
    models: Text | None = setting(
        "OLLAMA_MODELS",
        default=None,
        text="The server's store. Unset: `/runpod-volume/ollama/models` if writable, else `~/.ollama/models`.",
    )
    landing: Flag = setting(
        "WORKER_LANDING",
        default=True,
        text="Copy weights from distant storage to local disk while the server starts, where that is faster.",
    )
    landing_dir: Text | None = setting(
        "WORKER_LANDING_DIR", default=None, text="The folder for such copies. Unset: `~/.ollama/landed`."
    )
    jit_cache: Annotated[Literal["direct", "mirror", "off"], BeforeValidator(stripped)] = setting(
        "WORKER_JIT_CACHE",
        default="direct",
        text="Kernels compiled at run time: the driver keeps them on the volume; `mirror`: it works on local disk, and "
        "one packed copy is read before the load and written after the first job; `off`: not kept.",
    )
    prime: Flag = setting(
        "WORKER_PRIME",
        default=False,
        text="Run one tiny prompt after the load. Off: a job that waits already would wait for it.",
    )
