"""`make run` and `make serve`: a queue, a worker and a chat model on this machine, no account and no GPU needed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from worker.local.engine.store import register_gguf, smollm2_gguf
from worker.local.process import ROOT, WorkerProcess, worker_environment
from worker.local.queue import LocalQueue
from worker.timeline import parse, render
from worker.timeline.model import timelines

MODEL = "smollm2:135m"
HOME = ROOT / "build" / "local"
QUESTION = "Why is the sky blue?"
PORT = 8000
_PORTS = range(1 << 16)
_PORT_EXAMPLE = "make serve PORT=8001"
# Settings of the worker's that somebody may have exported for a try; everything else stays out.
_OFFERED = ("HF_", "AWS_", "OLLAMA_", "WORKER_", "RUNPOD_MODEL_CACHE_DIR")
_PATHS = ("/", "./", "../", "~")
_KEPT = ("OLLAMA_BIN", "OLLAMA_SRC", "OLLAMA_HOST", "OLLAMA_MODELS", "WORKER_SERVER_COMMAND")
_STAGES = {
    "worker.started": "start.sh and Python",
    "server.answered": "the server answers",
    "sdk_import.finished": "RunPod's SDK is imported",
    "weights.placed": "the weights are in place",
    "load.finished": "the model is in memory",
    "job.accepted": "the job is here",
}


def run(question: str, model: str = "") -> int:
    """Answer one streaming chat job and show where the time went; return an exit code.

    `model` is whatever OLLAMA_MODEL may be: a name, a path to a GGUF or a folder of them, an s3:// URL.
    """
    settings = _prepare(model)
    with LocalQueue() as queue:
        job_id = queue.submit(
            {
                "messages": [{"role": "user", "content": question}],
                "stream": True,
                "options": {"temperature": 0, "num_predict": 120},
            }
        )
        with WorkerProcess(worker_environment(queue, home=HOME, **settings)) as worker:
            if not _show_boot(worker):
                return 1
            print(f"\n> {question}\n")
            for text in _texts(queue.stream(job_id)):
                print(text, end="", flush=True)
            print("\n")
            status = queue.wait(job_id)
            exit_code = worker.stop()
        if status["status"] != "COMPLETED":
            print(f"The job ended as {status['status']}: {status.get('error')}", file=sys.stderr)
            return 1
        _save(worker, HOME / "last-run.jsonl")
        _show_timeline(worker)
        print(f"Events: {_short(HOME / 'last-run.jsonl')}   Again: make run ASK='…'   Stay up: make serve")
        return exit_code


def serve(port: str = "", model: str = "") -> int:
    """Keep a queue and a worker running until the person at the terminal has had enough.

    The first Ctrl-C lets a running job finish, a second one ends everything at once.
    """
    number = _port(port)
    settings = _prepare(model)
    with ExitStack() as opened:
        try:
            queue = opened.enter_context(LocalQueue(port=number))
        except OSError as exc:
            print(f"Port {number} cannot be listened on: {exc}. Choose another one: {_PORT_EXAMPLE}", file=sys.stderr)
            return 1
        worker = opened.enter_context(WorkerProcess(worker_environment(queue, home=HOME, **settings)))
        if not _show_boot(worker, until="loop.started"):
            return 1
        name = worker.wait_event("boot.ready")["model"]
        endpoint = f"{queue.api_url}/{queue.endpoint_id}"
        body = json.dumps({"input": {"prompt": "Hello!"}})
        print(f"\nRunPod API     {endpoint}/runsync")
        print(f"OpenAI client  base_url={queue.openai_url!r}, model {name!r}, any key")
        print(f"runpod client  RUNPOD_ENDPOINT_BASE_URL={queue.api_url}, Endpoint({queue.endpoint_id!r}), any key\n")
        print(f"  curl -s {endpoint}/runsync -H 'Content-Type: application/json' -d '{body}'\n")
        print("Ctrl-C ends it; a job that runs may finish, for up to 25 s, unless it is pressed again.", flush=True)
        try:
            exit_code = worker.process.wait()
        except KeyboardInterrupt:
            if queue.health()["jobs"]["inProgress"]:
                print("\nWaiting for the job that runs; Ctrl-C again ends it at once.", flush=True)
            return worker.stop()
        print(f"The worker ended by itself. Its last lines:\n{worker.tail()}", file=sys.stderr)
        return exit_code


def _port(text: str) -> int:
    """Return the port that `text` names, the usual one for none; exit with a sentence when there is no such port."""
    if not text.strip():
        return PORT
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number not in _PORTS:
        sys.exit(f"PORT is {text!r}: it must be a number from 0 (any free port) to {_PORTS[-1]}, as in {_PORT_EXAMPLE}")
    return number


def _prepare(model: str) -> dict[str, str]:
    """Return the model and what else is set for the worker."""
    HOME.mkdir(parents=True, exist_ok=True)
    given = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_OFFERED) and name not in _KEPT and value.strip()
    }
    wanted = model or given.pop("OLLAMA_MODEL", "") or MODEL
    if wanted == MODEL:
        register_gguf(HOME / "models", MODEL, smollm2_gguf())
    elif (path := Path(wanted).expanduser()).exists():
        # The worker runs in a folder of its own.
        wanted = str(path.absolute())
    elif wanted.startswith(_PATHS):
        sys.exit(
            f"There is no {path.absolute()}: MODEL is a path to a GGUF or a folder of them, a name, an s3:// URL "
            "or a Hugging Face address"
        )
    engine = os.environ.get("OLLAMA_BIN") or "the local engine (set OLLAMA_BIN=/path/to/ollama for a real Ollama)"
    shown = given.get("WORKER_MODELS") or given.get("HF_MODEL") or wanted
    print(f"Server: {engine}\nModel:  {shown}\n")
    return {**given, "model": wanted}


def _show_boot(worker: WorkerProcess, until: str = "job.accepted") -> bool:
    start_ns = None
    for record in worker.events(timeout_s=120.0):
        name = record["event"]
        start_ns = start_ns or record["at_ns"]
        if name in _STAGES:
            print(f"{(record['at_ns'] - start_ns) / 1e9:6.2f} s  {_STAGES[name]}", flush=True)
        if name == until:
            return True
        if name == "boot.failed":
            # Its log would only say it again, in more words.
            print(f"The worker cannot serve: {record['message']}", file=sys.stderr)
            return False
    print(f"The worker ended before its first job. Its last lines:\n{worker.tail()}", file=sys.stderr)
    return False


def _texts(outputs: Iterator[Any]) -> Iterator[str]:
    for output in outputs:
        value = json.loads(output) if isinstance(output, str) else output
        yield str(value.get("message", {}).get("content", ""))


def _show_timeline(worker: WorkerProcess) -> None:
    entries = parse.read("\n".join(worker.lines))
    columns = min(110, shutil.get_terminal_size().columns)
    print(render.render(timelines(entries), render.Style(width=columns, colour=sys.stdout.isatty())))


def _save(worker: WorkerProcess, path: Path) -> None:
    path.write_text("\n".join(worker.lines) + "\n", encoding="utf-8")


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
