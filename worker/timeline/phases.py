"""What happens inside the server's start and inside a load, as its own log tells it."""

from __future__ import annotations

from worker.timeline.parse import Entry
from worker.timeline.spans import Stretch, divide

# Landmark → the phase it opens. Phases are named for what takes the time, so "probe" begins where the graph is
# reserved: the next thing the runner does is decode two tokens, which pays for loading or compiling kernels.
_SERVER = {
    "server.configured": "store check",
    "server.listened": "GPU discovery",
    "discovery.started": "GPU discovery",
    "gpu.discovered": "first answer",
}
_LOAD = {
    "runner.spawned": "runner start",
    "model.opened": "metadata",
    "fit.started": "fit",
    "fit.finished": "metadata",
    "metadata.read": "metadata",
    "tensors.started": "read",
    "tensors.mapped": "upload",
    "context.started": "context",
    "graph.reserved": "probe",
    "warmup.started": "warm-up",
    "draft.started": "draft model",
    "projector.started": "projector",
    "projector.loaded": "probe",
    "sequence.probed": "slots",
    "slots.started": "slots",
    "model.loaded": "health poll",
    "runner.listened": "health poll",
    "runner.started": "last answer",
}

PHASES = {"server": (_SERVER, "process start"), "load": (_LOAD, "schedule")}


def refine(stretch: Stretch, entries: tuple[Entry, ...]) -> Stretch:
    """Divide a server or load span into the phases its log lines mark; other spans come back as they are."""
    if stretch.name not in PHASES:
        return stretch
    table, first = PHASES[stretch.name]
    return divide(stretch, entries, table, first)
