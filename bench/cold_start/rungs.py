"""The steps from a stock start to this worker's: what each adds, and why it may not show on a host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from worker.environment import BACKEND_VARIABLE, FIT_VARIABLE, THREADS_VARIABLE


@dataclass(frozen=True)
class Host:
    """What decides which rungs can be measured here.

    `server` is what it is called in a sentence; `knows` says whether it understands a variable of ours. `gpu` is why no
    CUDA backend can be chosen, empty when one can; `outcome` what the chosen one needs on the devices: native or jit.
    `runner` is why the runner is told nothing here, `store` why nothing would be landed, both empty when it would be.
    """

    server: str
    knows: Callable[[str], bool]
    projector: bool
    gpu: str
    outcome: str
    runner: str
    store: str


Obstacle = Callable[[Host], str]


@dataclass(frozen=True)
class Rung:
    """One step: settings that are given from here on, and server variables the worker sets from here on.

    `obstacle` returns why it cannot be measured on a host, empty when it can. `keeps_kernels` is a rung whose volume
    outlives its runs, filled by one that does not count.
    """

    name: str
    title: str
    gives: Mapping[str, str] = field(default_factory=dict)
    knobs: tuple[str, ...] = ()
    obstacle: Obstacle = lambda _: ""
    stock_order: bool = False
    keeps_kernels: bool = False


@dataclass(frozen=True)
class Step:
    """A rung of a ladder on a host: everything given to it, what is withheld from the server, why it cannot run."""

    rung: Rung
    number: int
    settings: Mapping[str, str]
    withheld: tuple[str, ...]
    obstacle: str


# What the worker does from the second rung on, until a later one turns it on. What the model can do is the same on
# every rung: context, slots and attention are not steps of a start.
OFF = {"WORKER_LANDING": "0", "WORKER_JIT_CACHE": "off"}


def _patched(*variables: str) -> Obstacle:
    def obstacle(host: Host) -> str:
        unknown = [name for name in variables if not host.knows(name)]
        return f"{host.server} does not know {', '.join(unknown)}" if unknown else ""

    return obstacle


def _projector(host: Host) -> str:
    return _patched("OLLAMA_SKIP_MMPROJ")(host) or ("" if host.projector else "the model has no projector")


def _compiles(host: Host) -> str:
    if host.gpu:
        return host.gpu
    return "" if host.outcome == "jit" else "the backend has machine code for this device: nothing is compiled"


RUNGS = (
    Rung("stock", "stock order", stock_order=True),
    Rung("structure", "+ all overlapped"),
    Rung("warm-up", "+ no warm-up run", knobs=("OLLAMA_SKIP_WARMUP",), obstacle=_patched("OLLAMA_SKIP_WARMUP")),
    Rung("projector", "+ no projector", gives={"OLLAMA_SKIP_MMPROJ": "1"}, obstacle=_projector),
    Rung("poll", "+ load seen in 20 ms", knobs=("OLLAMA_LOAD_POLL_MS",), obstacle=_patched("OLLAMA_LOAD_POLL_MS")),
    Rung(
        "backend",
        "+ chosen backend",
        knobs=(BACKEND_VARIABLE, "OLLAMA_DISCOVER_ONCE", "OLLAMA_VULKAN"),
        obstacle=lambda host: host.gpu,
    ),
    Rung("runner", "+ fit and threads", knobs=(FIT_VARIABLE, THREADS_VARIABLE), obstacle=lambda host: host.runner),
    Rung(
        "landing",
        "+ landing",
        gives={"WORKER_LANDING": "1"},
        knobs=("OLLAMA_CACHE_IS_FREE",),
        obstacle=lambda host: host.store,
    ),
    Rung("jit-cold", "+ JIT cache, empty", gives={"WORKER_JIT_CACHE": "direct"}, obstacle=_compiles),
    Rung("jit-warm", "+ JIT cache, filled", obstacle=_compiles, keeps_kernels=True),
)
NAMES = tuple(rung.name for rung in RUNGS)


def ladder(host: Host, given: Mapping[str, Mapping[str, str]], rungs: Sequence[Rung] = RUNGS) -> Iterator[Step]:
    """Yield the rungs in order, each with what it and all before it bring; one that cannot run brings nothing.

    `given` has more settings for a rung, by its name.
    """
    obstacles = {rung.name: rung.obstacle(host) for rung in rungs}
    withheld = {name for rung in rungs for name in rung.knobs}
    settings: dict[str, str] = dict(OFF)
    for number, rung in enumerate(rungs, start=1):
        if not obstacles[rung.name]:
            settings |= {**rung.gives, **given.get(rung.name, {})}
            withheld -= set(rung.knobs)
        yield Step(rung, number, dict(settings), tuple(sorted(withheld)), obstacles[rung.name])
