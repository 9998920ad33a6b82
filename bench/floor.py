"""The least a cold start can take here: the server alone, its load, its first token, and nothing around it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import requests

from worker.config import load
from worker.environment import server_command, server_environment
from worker.events import EventWriter
from worker.residency import Residency
from worker.server import Server

LIMIT_S = 120.0


@dataclass(frozen=True)
class Floor:
    """Seconds from the start of the server process to each milestone."""

    answered_s: float
    loaded_s: float
    first_token_s: float


def measure(environ: Mapping[str, str], messages: list[dict[str, str]]) -> Floor:
    """Start the server of `environ` as the worker would, load its model, and take one token from it."""
    config = load(environ)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        server = Server(EventWriter(nowhere))
        residency = Residency(config.server_url)
        began_s = time.perf_counter()
        server.spawn(server_command(environ), server_environment(environ))
        try:
            server.wait_until(lambda: residency.version() is not None, "server start", LIMIT_S)
            answered_s = time.perf_counter() - began_s
            residency.load(config.model, lambda: LIMIT_S)
            loaded_s = time.perf_counter() - began_s
            _first_token(config.server_url, config.model, messages)
            return Floor(answered_s, loaded_s, time.perf_counter() - began_s)
        finally:
            server.stop()


def _first_token(url: str, model: str, messages: list[dict[str, str]]) -> None:
    body = {"model": model, "messages": messages, "stream": True, "options": {"temperature": 0, "num_predict": 8}}
    with requests.post(f"{url}/api/chat", json=body, stream=True, timeout=LIMIT_S) as reply:
        frame = json.loads(next(reply.iter_lines()))
    if "message" not in frame:
        raise RuntimeError(f"the server answered {frame} instead of a token")
