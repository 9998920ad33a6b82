"""The spans between events: pairs of names, no stored duration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """The time between two events of one worker, or of one job when both carry its id."""

    start: str
    end: str
    meaning: str


SPANS: dict[str, Span] = {
    "container": Span("container.started", "worker.started", "start.sh and the start of Python"),
    "launch": Span("worker.started", "server.spawned", "imports, the server's environment"),
    "config": Span("server.spawned", "config.loaded", "the configuration is checked"),
    "server": Span("server.spawned", "server.answered", "process start to HTTP 200"),
    "sdk": Span("sdk_import.started", "sdk_import.finished", "import runpod"),
    "weights": Span("weights.requested", "weights.placed", "finding and placing the weights"),
    "landing": Span("landing.started", "landing.finished", "weights from distant storage to local disk"),
    "kernels": Span("hydrate.started", "hydrate.finished", "compiled kernels from the volume to local disk"),
    "load": Span("load.started", "load.finished", "weights into (video) memory"),
    "prime": Span("prime.started", "prime.finished", "one tiny prompt, before any job"),
    "loop": Span("boot.ready", "loop.started", "the SDK's start until it asks for a job"),
    "wait": Span("loop.started", "job.accepted", "no job was there"),
    "open": Span("job.accepted", "job.opened", "job understood, request sent"),
    "prefill": Span("job.opened", "job.token_received", "prompt in, first token out"),
    "post": Span("job.token_received", "job.chunk_posted", "first chunk to the platform"),
    "decode": Span("job.token_received", "job.finished", "first token to the end of the answer"),
}
