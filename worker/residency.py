"""The model's way into the server's memory, asked for over blocking HTTP before any job runs."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from worker.errors import BootError, GpuUnusable, ServerExited, ServerTimeout, WeightsUnavailable

CONNECT_TIMEOUT_S = 2.0
LIST_TIMEOUT_S = 30.0
# The server's words for a model of embeddings only; without input it is loaded by asking for one.
NO_TEXT = "does not support generate"


@dataclass(frozen=True)
class Resident:
    """A loaded model as `/api/ps` reports it; sizes in bytes, context in tokens."""

    model: str
    size_bytes: int
    size_vram_bytes: int
    context_length: int

    @property
    def on_gpu(self) -> bool:
        """Whether every byte of the model is in video memory."""
        return 0 < self.size_bytes <= self.size_vram_bytes


@dataclass(frozen=True)
class _Reply:
    """A whole answer of the server."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status < http.client.BAD_REQUEST

    def object(self) -> dict[str, Any]:
        """Return the JSON object it holds, empty when it holds none."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def error(self) -> str:
        """Return the server's own words."""
        text = self.body.decode("utf-8", "replace")
        return str(self.object().get("error") or text[:200] or f"HTTP {self.status}")


class Residency:
    """Asks one server about one model; every call may raise the server's own words as an error."""

    def __init__(self, base_url: str) -> None:
        """Talk to the server at `base_url`; nothing is sent yet.

        http.client and not requests: this is imported between the start of the server and its first answer, where
        requests would take longer than the server does.
        """
        self._address = urlsplit(base_url).netloc

    def version(self) -> str | None:
        """Return the server's version, or None while it does not answer HTTP 200."""
        try:
            reply = self._send("GET", "/api/version", None, lambda: CONNECT_TIMEOUT_S)
        except (OSError, http.client.HTTPException):
            return None
        return str(reply.object().get("version", "")) if reply.ok else None

    def load(self, model: str, limit_s: Callable[[], float]) -> Resident:
        """Make the model resident and return what the server says about it.

        `limit_s` is asked once the request is out, and may block. The request has no prompt and no options, so later
        jobs find the runner they need. The connection is held until the end: the server gives up a load whose client
        went away.

        Raises:
            ServerTimeout: it took longer than `limit_s()` seconds.
            ServerExited: the connection broke.
            WeightsUnavailable: the server refused to load the model.
            BootError: the server does not list the model as loaded.
        """
        reply = self._call("/api/generate", {"model": model, "stream": False}, limit_s)
        if reply.status == http.client.BAD_REQUEST and NO_TEXT in reply.error():
            reply = self._call("/api/embed", {"model": model}, limit_s)
        if not reply.ok:
            hint = "The file may be damaged, of an unsupported kind, or too large for this machine"
            raise WeightsUnavailable(f"the server could not load model {model!r}: {reply.error()}", hint)
        return self._resident(model)

    def prime(self, model: str, limit_s: float) -> None:
        """Answer one tiny prompt, so that the kernels of a prefill are there before the first job.

        It needs no other runner than jobs do. Off by default: a job that is waiting already would wait for it.

        Raises:
            ServerTimeout, ServerExited: as for `load`. What else goes wrong is for the first job to find out.
        """
        body = {"model": model, "prompt": "Hi", "stream": False, "options": {"num_predict": 1}}
        self._call("/api/generate", body, lambda: limit_s)

    def _resident(self, model: str) -> Resident:
        reply = self._call("/api/ps", None, lambda: LIST_TIMEOUT_S)
        for entry in reply.object().get("models") or []:
            names = {str(entry.get("name", "")), str(entry.get("model", ""))}
            if names & {model, f"{model}:latest"} or len(reply.object()["models"]) == 1:
                return Resident(
                    model=model,
                    size_bytes=int(entry.get("size", 0)),
                    size_vram_bytes=int(entry.get("size_vram", 0)),
                    context_length=int(entry.get("context_length", 0)),
                )
        raise BootError(
            f"the server says it loaded {model!r} but does not list it as resident",
            "OLLAMA_KEEP_ALIVE must not be 0: the model has to stay loaded",
        )

    def _call(self, path: str, body: dict[str, object] | None, limit_s: Callable[[], float]) -> _Reply:
        try:
            return self._send("GET" if body is None else "POST", path, body, limit_s)
        except TimeoutError as exc:
            raise ServerTimeout("load", limit_s()) from exc
        except (OSError, http.client.HTTPException) as exc:
            raise ServerExited(1, ["connection lost during load"]) from exc

    def _send(self, method: str, path: str, body: dict[str, object] | None, limit_s: Callable[[], float]) -> _Reply:
        connection = http.client.HTTPConnection(self._address, timeout=CONNECT_TIMEOUT_S)
        try:
            text = None if body is None else json.dumps(body).encode()
            connection.request(method, path, text, {"Content-Type": "application/json"})
            connection.sock.settimeout(limit_s())
            reply = connection.getresponse()
            return _Reply(reply.status, reply.read())
        finally:
            connection.close()


def require_gpu(resident: Resident) -> None:
    """Raise GpuUnusable unless the whole model is in video memory."""
    if resident.on_gpu:
        return
    share = resident.size_vram_bytes / resident.size_bytes if resident.size_bytes else 0.0
    raise GpuUnusable(
        f"only {int(share * 100)}% of {resident.model!r} is on a GPU "
        f"({resident.size_vram_bytes:,} of {resident.size_bytes:,} bytes)",
        "Use a GPU with more memory, a smaller quantization or OLLAMA_CONTEXT_LENGTH, "
        "or set WORKER_ALLOW_CPU=1 to serve about 5 times slower",
    )
