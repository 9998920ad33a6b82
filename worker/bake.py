"""`python -m worker bake`: the kernels a driver has to compile, made once here and packed for every later worker."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import requests

from worker import config, events, exercise, gpu
from worker.choice import Choice
from worker.config import Config
from worker.environment import BACKEND_FILE
from worker.errors import BootError, GpuUnusable, ServerExited, WeightsUnavailable
from worker.exercise import Coach
from worker.folders import kernels
from worker.jit_cache import JitCache, Key
from worker.jit_key import NoKey, jit_key
from worker.launch import Launch, prepare
from worker.location import Located, locate
from worker.outset import outset
from worker.residency import Residency, Resident, require_gpu
from worker.server import Server

# The driver's limit; its default of 1 GiB is smaller than what one large model's kernels can need.
MAXSIZE = str((1 << 32) - 1)


@dataclass(frozen=True)
class Job:
    """What is baked: a model at rest, how its server is started, for which devices, and where the result goes."""

    config: Config
    launch: Launch
    model: Located
    key: Key
    shared: Path


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Compile, pack and say so; return 0, or 1 with one sentence when nothing could be baked."""
    parser = argparse.ArgumentParser(prog="python -m worker bake", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the packed kernels; default: $WORKER_VOLUME/jit-cache")
    parser.add_argument("--force", action="store_true", help="also where the backend has native code")
    options = parser.parse_args(argv)
    try:
        launch = prepare(environ)
        judged = _judged(launch, environ)
        if judged.outcome == "native" and not options.force:
            _say(f"unneeded: {judged.backend} has native code for every device here")
            return 0
        return _bake(_job(launch, judged, environ, options.out), environ)
    except BootError as exc:
        sys.stderr.write(f"bake: {exc.sentence()}\n")
        return 1


def _judged(launch: Launch, environ: Mapping[str, str]) -> Choice:
    found = launch.judge(environ)
    if found is None:
        raise GpuUnusable("the server has no CUDA backend", "Bake in the image that is to use the kernels")
    if not found.verdicts or not next(iter(found.verdicts.values())):
        raise GpuUnusable(
            "kernels are compiled for the GPU that is there, and none is visible here",
            "Bake on a machine with the GPU and the driver of the endpoint, as in docker run --gpus all",
        )
    return found.require_usable()


def _job(launch: Launch, judged: Choice, environ: Mapping[str, str], out: Path | None) -> Job:
    # Outside Runpod nobody sets where jobs come from, and that is no mistake here.
    loaded = config.load({config.TAKE_VARIABLE: "none", **environ})
    start = outset(environ)
    model = locate(start.stores, start.wanted)
    if not isinstance(model, Located):
        raise WeightsUnavailable(
            f"{start.wanted.text!r} is in no store here: {'; '.join(model.reasons)}",
            "Get it first: python -m worker models pull",
        )
    if launch.libraries is None or not judged.backend:
        raise GpuUnusable(f"no backend can be named for these devices: {judged.reason}", judged.hint)
    try:
        key = jit_key(gpu.detect(environ), launch.libraries / judged.backend / BACKEND_FILE)
    except NoKey as exc:
        raise GpuUnusable(f"it cannot be said whom the kernels would fit: {exc}") from exc
    return Job(loaded, launch, model, key, out or kernels(environ))


def _bake(job: Job, environ: Mapping[str, str]) -> int:
    with tempfile.TemporaryDirectory(prefix="bake.") as folder:
        local = Path(folder) / "cuda-cache"
        cache = JitCache(local, job.shared, job.key)
        # What was baked before, for another model, is kept: the packed file is replaced as a whole.
        before = cache.hydrate()
        local.mkdir(exist_ok=True)
        _say(f"for {job.key.name}: " + (f"{before.files} files are kept already" if before.done else before.reason))
        _compile(job, environ, local)
        outcome = cache.persist()
    if outcome.done:
        _say(f"kept {outcome.files} files, {outcome.size_bytes:,} bytes, in {job.shared / job.key.name}.tar")
        return 0
    _say(f"nothing written: {outcome.reason}")
    return 0 if before.done else 1


def _compile(job: Job, environ: Mapping[str, str], local: Path) -> None:
    """Run the server as the worker does and put every exercise to its model; raise BootError."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        server = Server(events.EventWriter(nowhere))
        residency = Residency(job.config.server_url)
        started = job.launch.environ(environ)
        started |= {
            "CUDA_CACHE_PATH": str(local),
            "CUDA_CACHE_MAXSIZE": environ.get("CUDA_CACHE_MAXSIZE", "").strip() or MAXSIZE,
            "OLLAMA_MODELS": str(job.model.models),
        }
        try:
            server.spawn(job.launch.argv, started)
            server.wait_until(lambda: residency.version() is not None, "server start", job.config.server_timeout_s)
            with server.blamed(ServerExited, WeightsUnavailable):
                resident = residency.load(job.model.name, lambda: job.config.load_timeout_s)
            if not job.config.allow_cpu:
                require_gpu(resident)
            with server.blamed(requests.RequestException):
                _exercise(job, resident)
        except requests.RequestException as exc:
            raise BootError(f"the server gave no answer: {exc}") from exc
        finally:
            # The driver has written everything once its process is gone.
            server.stop()


def _exercise(job: Job, resident: Resident) -> None:
    image = job.model.manifest.layer("projector") is not None and not job.config.skip_projector
    exercises = exercise.plan(resident.context_length, parallel=job.config.num_parallel, image=image)
    coach = Coach(job.config.server_url, job.model.name, job.config.load_timeout_s)
    problems = []
    for done in coach.run(exercises):
        told = f"refused: {done.problem}" if done.problem else f"{done.prompt_tokens} tokens in {done.took_s:.1f} s"
        _say(f"{done.exercise.name}: {told}")
        problems += [done.problem] if done.problem else []
    if len(problems) == len(exercises):
        raise BootError(f"the model answered no prompt: {problems[-1]}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
