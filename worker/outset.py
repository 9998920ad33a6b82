"""What a boot starts from before its configuration is checked: the model, the stores, the server's address; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from worker import folders
from worker.environment import DEFAULT_HOST, is_on
from worker.references import Asked, Wanted, listed

# Host, then port; an IPv6 address is in brackets when a port follows it.
_ADDRESS = re.compile(r"(\[[^]]*\]|[^:]*)(?::([^:]*))?")


@dataclass(frozen=True)
class Outset:
    """The model to keep resident, those served on demand, and a sentence for each variable that is outranked.

    `stores` are Ollama's stores in the order they are searched; the first is the one that is filled. `home` is where
    the worker keeps what only it uses, on the container's own disk.
    """

    wanted: Wanted
    others: tuple[Wanted, ...]
    notes: tuple[str, ...]
    stores: tuple[Path, ...]
    home: Path
    server_url: str


def outset(environ: Mapping[str, str]) -> Outset:
    """Read what `environ` says of models and stores; raise NameInvalid for a name that cannot be understood."""

    def value(*names: str) -> str:
        return next((text for name in names if (text := environ.get(name, "").strip())), "")

    asked = Asked(
        models=listed(value("WORKER_MODELS")),
        hf_model=value("HF_MODEL"),
        hf_quantization=value("HF_QUANTIZATION"),
        hf_model_file=value("HF_MODEL_FILE"),
        ollama_model=value("OLLAMA_MODEL", "OLLAMA_MODEL_NAME"),
    )
    wanted, notes = asked.resident()

    template = environ["OLLAMA_TEMPLATE"] if value("OLLAMA_TEMPLATE") else ""

    def dressed(model: Wanted) -> Wanted:
        return replace(model, template=template, skip_projector=is_on(environ, "OLLAMA_SKIP_MMPROJ"))

    others = tuple(dressed(other) for other in asked.others())
    url = server_url(value("OLLAMA_HOST") or DEFAULT_HOST)
    return Outset(dressed(wanted), others, tuple(notes), folders.stores(environ), folders.home(environ), url)


def server_url(host: str) -> str:
    """Return the server's base URL as the worker calls it; OLLAMA_HOST is completed by Ollama's own rules."""
    scheme, mark, rest = host.strip("\"'").partition("://")
    address = (rest if mark else scheme).partition("/")[0]
    parts = _ADDRESS.fullmatch(address)
    name, port = (parts[1], parts[2] or "") if parts else (f"[{address}]", "")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):  # noqa: PLR2004 - the last port
        port = {"http": "80", "https": "443"}.get(scheme, "11434") if mark else "11434"
    # These are addresses to listen on, not to call.
    every = name in {"", "0.0.0.0", "[::]"}  # noqa: S104 - compared, not bound
    return f"http://{'127.0.0.1' if every else name}:{port}"
