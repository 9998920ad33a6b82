"""What the engine reads from the environment, under the names and with the defaults of `ollama serve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.local.engine import duration

DEFAULT_PORT = 11434
SCHEME_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65535
CPU_CONTEXT = 4096


@dataclass(frozen=True)
class Settings:
    """The engine's settings; times in seconds, `inf` for never."""

    host: str
    port: int
    models: Path
    keep_alive_s: float
    load_timeout_s: float
    context_length: int
    parallel: int
    max_loaded: int
    max_queue: int

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Settings:
        """Read `env`; a value that cannot be read counts as its default, as in Ollama."""

        def text(name: str) -> str:
            return env.get(name, "").strip().strip("\"'")

        def count(name: str, default: int) -> int:
            return int(text(name)) if text(name).isdecimal() else default

        host, port = parse_host(text("OLLAMA_HOST"))
        load_timeout_s = duration.from_environment(text("OLLAMA_LOAD_TIMEOUT"), 300)
        return cls(
            host=host,
            port=port,
            models=Path(text("OLLAMA_MODELS") or Path.home() / ".ollama" / "models"),
            keep_alive_s=duration.from_environment(text("OLLAMA_KEEP_ALIVE"), 300),
            load_timeout_s=load_timeout_s or duration.FOREVER_S,
            context_length=count("OLLAMA_CONTEXT_LENGTH", 0) or CPU_CONTEXT,
            parallel=max(1, count("OLLAMA_NUM_PARALLEL", 1)),
            # Ollama's own default: three models per device, and the CPU counts as one.
            max_loaded=count("OLLAMA_MAX_LOADED_MODELS", 0) or 3,
            max_queue=count("OLLAMA_MAX_QUEUE", 512),
        )


def parse_host(value: str) -> tuple[str, int]:
    """Split `host:port`, `:port`, `host` or `http://host:port/path` into what to listen on."""
    scheme, separator, rest = value.partition("://")
    default_port = SCHEME_PORTS.get(scheme, DEFAULT_PORT) if separator else DEFAULT_PORT
    authority = (rest if separator else value).partition("/")[0]
    host, port = authority, ""
    if authority.startswith("["):
        host, _, tail = authority[1:].partition("]")
        port = tail.removeprefix(":")
    elif authority.count(":") == 1:
        host, _, port = authority.partition(":")
        # Ollama listens on every address when only a port is given.
        host = host or "0.0.0.0"  # noqa: S104 - what `:11434` means to Ollama
    number = int(port) if port.isdecimal() and int(port) <= MAX_PORT else default_port
    return host or "127.0.0.1", number
