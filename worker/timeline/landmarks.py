"""Lines of Ollama, its runner, the platform and the SDK that say how far a start has come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SLOG_START = re.compile(r"time=(?P<time>\S+) level=\w+")
_SLOG_FIELD = re.compile(r'([\w.]+)=("(?:[^"\\]|\\.)*"|\S*)')
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,15})?")


_TASK = r"(?:task (?P<task>\d+) \|\s*)?"
_ACCESS = re.compile(
    r"\[GIN\] (?P<date>.{21}) \|\s*(?P<status>\d+) \|\s*(?P<took>\S+) \|"
    r'.*\| (?P<verb>[A-Z]+)\s+"(?P<route>[^"]*)"'
)


@dataclass(frozen=True)
class Landmark:
    """What a line says: a name and what could be read with it."""

    name: str
    fields: Mapping[str, Any]


# Written by Ollama's own logger; matched against the message alone. Older wordings are kept beside the present ones,
# because a log from somebody else's image is read here too.
_MESSAGES = (
    ("server.configured", re.compile(r"server config")),
    ("store.pruned", re.compile(r"total unused blobs removed")),
    ("server.listened", re.compile(r"Listening on .*\(version (?P<version>[^)]*)\)")),
    ("discovery.started", re.compile(r"discovering available GPUs|looking for compatible GPUs")),
    ("library.tried", re.compile(r"bootstrap discovery took")),
    ("gpu.discovered", re.compile(r"inference compute")),
    ("context.defaulted", re.compile(r"vram-based default context")),
    ("download.started", re.compile(r"downloading (?P<digest>[0-9a-f]{12}) in ")),
    ("mmap.disabled", re.compile(r"disabling mmap for llama-server load")),
    ("runner.spawned", re.compile(r"starting (?:llama-server|llama server|runner)")),
    ("load.retried", re.compile(r"(?:load|startup) failed.*retrying")),
    ("load.aborted", re.compile(r"client connection closed before .* finished loading")),
    ("runner.started", re.compile(r"(?:llama-server|llama runner) started in (?P<took_s>\d+(?:\.\d+)?) seconds")),
)
_MESSAGE_FIELDS = frozenset(
    {"library", "compute", "libdirs", "description", "driver", "total", "default_num_ctx", "duration", "cmd", "env"}
    | {"OLLAMA_LIBRARY_PATH"}
)

# Written by the runner, the platform, the SDK or Ollama's older logger; matched anywhere in the line, because the
# runner pads and cuts its prefixes.
_LINES = (
    ("container.created", re.compile(r"^create container \S+")),
    ("container.begun", re.compile(r"^start container for \S+: begin")),
    ("server.configured", re.compile(r"INFO server config env=(?P<env>.*)")),
    ("sdk_loop.announced", re.compile(r"--- Starting Serverless Worker \|  Version (?P<version>\S+)")),
    ("cuda.initialized", re.compile(r"ggml_cuda_init: found (?P<devices>\d+) CUDA devices")),
    ("backend.loaded", re.compile(r"load_backend: loaded (?P<backend>\w+) backend from (?P<path>.+)")),
    ("model.opened", re.compile(r"loading model '")),
    ("fit.started", re.compile(r"fitting params to device memory")),
    ("fit.finished", re.compile(r"fitting params to free memory took (?P<took_s>\d+(?:\.\d+)?) seconds")),
    ("metadata.read", re.compile(r"llama_model_loader: loaded meta data")),
    ("file.sized", re.compile(r"print_info: file size\s*=\s*(?P<size>\d+(?:\.\d+)?) (?P<unit>[KMGT]i?B)")),
    ("tensors.started", re.compile(r"loading model tensors.*\((?:load_mode = (?P<mode>\w+)|mmap = (?P<mmap>\w+))")),
    ("tensors.started", re.compile(r"loading model tensors")),
    ("tensors.mapped", re.compile(r"offloading output layer to GPU|offloading \d+ repeating layers")),
    ("layers.offloaded", re.compile(r"offloaded (?P<on_gpu>\d+)/(?P<layers>\d+) layers to GPU")),
    ("context.started", re.compile(r"constructing llama_context")),
    ("context.sized", re.compile(r"llama_context: n_ctx\s+= (?P<n_ctx>\d+)")),
    ("graph.reserved", re.compile(r"reserve took (?P<took_ms>\d+(?:\.\d+)?) ms|llama_context: graph splits = ")),
    ("warmup.started", re.compile(r"warming up the model with an empty run")),
    ("draft.started", re.compile(r"creating MTP draft context")),
    ("projector.started", re.compile(r"clip_model_loader:")),
    ("projector.loaded", re.compile(r"loaded multimodal model")),
    ("sequence.probed", re.compile(r"partial sequence removal")),
    ("slots.started", re.compile(r"initializing(?: slots)?, n_slots = (?P<slots>\d+)")),
    ("model.loaded", re.compile(r": model loaded\s*$")),
    ("runner.listened", re.compile(r"listening on http://")),
    ("slot.launched", re.compile(_TASK + "processing task")),
    ("prompt.timed", re.compile(_TASK + r"prompt eval time =\s*(?P<prefill_ms>[\d.]+) ms /\s*(?P<prompt_tokens>\d+) ")),
    ("output.timed", re.compile(_TASK + r"eval time =\s*(?P<decode_ms>[\d.]+) ms /\s*(?P<output_tokens>\d+) ")),
    ("request.finished", _ACCESS),
)
_SDK_MESSAGES = {"Started.": "sdk_job.started", "Finished.": "sdk_job.finished"}


def slog_time(text: str) -> str | None:
    """Return the time Ollama's logger wrote into the line, as text."""
    found = _SLOG_START.match(text)
    return found["time"] if found else None


def recognize(text: str) -> Landmark | None:
    """Name what one line of Ollama, its runner or the platform says; None when it says nothing of the start."""
    if _SLOG_START.match(text):
        fields = {key: _plain(raw) for key, raw in _SLOG_FIELD.findall(text)}
        message = str(fields.get("msg", ""))
        kept = {key: _number(given) for key, given in fields.items() if key in _MESSAGE_FIELDS}
        return _first(_MESSAGES, message, kept)
    return _first(_LINES, text, {})


def recognize_sdk(record: Mapping[str, Any]) -> Landmark | None:
    """Name what one line of RunPod's SDK says of a job; None for every other line of it."""
    name = _SDK_MESSAGES.get(str(record.get("message")))
    job_id = record.get("requestId")
    return Landmark(name, {"job_id": job_id}) if name and isinstance(job_id, str) else None


def _first(table: tuple[tuple[str, re.Pattern[str]], ...], text: str, fields: dict[str, Any]) -> Landmark | None:
    for name, pattern in table:
        found = pattern.search(text)
        if found is not None:
            named = {key: _number(raw) for key, raw in found.groupdict().items() if raw is not None}
            return Landmark(name, fields | named)
    return None


def _plain(raw: str) -> str:
    return raw[1:-1].replace('\\"', '"').replace("\\\\", "\\") if raw.startswith('"') else raw


def _number(raw: str) -> str | int | float:
    found = _NUMBER.fullmatch(raw)
    if found is None:
        return raw
    return float(raw) if found[1] else int(raw)
