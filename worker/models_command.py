"""`python -m worker models`: what is in the stores, brought there, checked, and cleared away."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from worker import arguments, folders, manifest, pruning
from worker.errors import WeightsUnavailable, WorkerError
from worker.http_answer import Busy, TransferFailed, ask
from worker.location import stamp
from worker.manifest import Manifest
from worker.names import DEFAULT_NAMESPACE, ModelName
from worker.references import Wanted, from_repository, from_text
from worker.registration import Registration
from worker.sources import chain
from worker.sources.standard import MODEL_CACHE, Places, object_storage, sources
from worker.status_line import StatusLine
from worker.store import Store
from worker.verification import verify


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command on the store that `environ` or an option names; return its exit code."""
    usual = folders.store(environ)
    options = _parser(usual).parse_args(argv)
    run: Callable[[argparse.Namespace, Mapping[str, str]], int] = options.run
    try:
        _require_store(options.store, may_be_absent=options.fills or options.store == usual)
        return run(options, environ)
    except WorkerError as exc:
        return _failed(exc.sentence())
    except OSError as exc:
        return _failed(f"{exc.filename}: {exc.strerror}" if exc.filename and exc.strerror else str(exc))
    except (ValueError, TransferFailed) as exc:
        return _failed(str(exc))


def _parser(store: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker models", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], text: str, *, fills: bool = False) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument("--store", type=Path, default=store, help=f"the store (default {store})")
        added.set_defaults(run=run, fills=fills)
        return added

    command("list", _list, "list the models, least recently used first")
    pull = command("pull", _pull, "bring a model into the store from wherever it is", fills=True)
    pull.add_argument("model", help="qwen3:8b, hf.co/org/repo:Q4_K_M, org/repo with --hub, a path or an s3:// URL")
    pull.add_argument("--hub", action="store_true", help="the name is a Hugging Face repository, as HF_MODEL")
    pull.add_argument("--file", default="", help="the file to take, as HF_MODEL_FILE")
    pull.add_argument("--from", dest="sources", nargs="+", default=[], help="ask these sources only, in this order")
    pull.add_argument("--server", type=arguments.server, help="a running server, which pulls from registries")
    register = command("register", _register, "make a GGUF file a model without copying it", fills=True)
    register.add_argument("file", type=Path)
    register.add_argument("--name", default="", help="what to call it (default: from the file's name)")
    register.add_argument("--projector", type=Path, default=None, help="the projector that goes with it")
    register.add_argument("--template", default="", help="a prompt template in Ollama's form")
    check = command("verify", _verify, "read every blob and compare it with its digest")
    check.add_argument("models", nargs="*", help="only these")
    check.add_argument("--jobs", type=arguments.count, default=4, help="how many are read at once")
    prune = command("prune", _prune, "remove the models not used for longest")
    prune.add_argument("--keep", type=arguments.size, required=True, help="how much may stay, as in 100G")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    prune.add_argument("--server", type=arguments.server, help="a running server, whose loaded models stay")
    return parser


def _list(options: argparse.Namespace, _: Mapping[str, str]) -> int:
    store = Store(options.store)
    rows = []
    for found in sorted(pruning.candidates(store), key=lambda found: found.last_used_s):
        for model in found.models:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.last_used_s)) if found.last_used_s else ""
            state = "; ".join(model.lacks(store.root)) or found.kept_because
            rows.append((model.name.short, f"{model.size_bytes / 1e9:.2f} GB", used, state))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    for row in rows:
        _say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not rows:
        _say(f"{options.store} has no models")
    return 0


def _pull(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    wanted = (from_repository if options.hub else from_text)(options.model)
    wanted = replace(wanted, file=options.file or wanted.file, template=environ.get("OLLAMA_TEMPLATE", ""))
    mirror, prefix = object_storage(environ, environ.get("WORKER_OBJECT_STORE", ""))
    places = Places(
        caches=(Path(environ.get("RUNPOD_MODEL_CACHE_DIR", "") or MODEL_CACHE),),
        mirror=mirror,
        prefix=prefix,
        token=environ.get("HF_TOKEN", ""),
        hub=environ.get("HF_ENDPOINT", "") or Places.hub,
        server_url=options.server or "",
    )
    asked = chain.chosen(sources(places), options.sources)
    policy = chain.Policy(in_order=bool(options.sources))
    with StatusLine(_say) as line:
        try:
            placed = chain.place(wanted, asked, Store(options.store), line.listener, policy)
        except WeightsUnavailable as exc:
            # What the worker advises are its variables; here are options.
            hint = _advice(wanted, options.server) if exc.hint == wanted.hint else exc.hint
            raise WeightsUnavailable(exc.message, hint) from exc
    _say(f"{placed.name} is in {placed.models} (from: {placed.source})")
    return 0


def _advice(wanted: Wanted, server: str | None) -> str:
    """Return what to do about a model that no source has."""
    if wanted.place:
        return wanted.hint
    if wanted.repo:
        return "Check the name and --file, HF_TOKEN for a gated repository, and the network"
    library = wanted.name.namespace == DEFAULT_NAMESPACE
    repository = "" if library else f"; if {wanted.name.namespace}/{wanted.name.model} is on Hugging Face, add --hub"
    if server:
        return f"Check the name and --server{repository}"
    return f"No registry was asked: --server names a running Ollama that uses this store and pulls{repository}"


def _register(options: argparse.Namespace, _: Mapping[str, str]) -> int:
    for path in filter(None, (options.file, options.projector)):
        if not path.is_file():
            raise ValueError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: name a GGUF file")
    name = _name(options.name) if options.name else from_text(str(options.file.resolve())).name
    registration = Registration(
        options.file, projector=options.projector, template=options.template, origin=stamp(options.file.resolve())
    )
    with StatusLine(_say) as line:
        registered = registration.into(Store(options.store), name, line.metered("reading"))
    for warning in registered.warnings:
        _say(f"Note: {warning}")
    _say(f"{name.short} is in {options.store}")
    return 0


def _verify(options: argparse.Namespace, _: Mapping[str, str]) -> int:
    models = _named(options.store, options.models)
    if not models:
        _say(f"{options.store} has no models")
        return 0
    with StatusLine(_say) as line:
        faults = verify(options.store, models, jobs=options.jobs, metered=line.metered("reading"))
    for fault in faults:
        _say(f"{fault.path}: {fault.reason}; it is part of {', '.join(fault.models)}")
    damaged = f"{_counted(len(faults), 'blob')} {'is' if len(faults) == 1 else 'are'} damaged"
    _say(f"{_counted(len(models), 'model')}: {damaged if faults else 'all blobs are whole'}")
    return 1 if faults else 0


def _named(models: Path, names: Sequence[str]) -> list[Manifest]:
    """Return the models called `names`, all of them without any; raise ValueError for one that is not there."""
    if not names:
        return list(manifest.every(models))
    found = []
    for text in names:
        name = manifest.spelled(models, _name(text))
        model = manifest.read(models, name) if name else None
        if model is None:
            there = ", ".join(model.name.short for model in manifest.every(models))
            raise ValueError(f"{text} is not in {models}; there are: {there or 'no models'}")
        found.append(model)
    return found


def _prune(options: argparse.Namespace, _: Mapping[str, str]) -> int:
    store = Store(options.store)
    chosen = pruning.plan(pruning.candidates(store, _loaded(options.server)), options.keep)
    left = pruning.abandoned(store)
    for candidate in chosen.gone:
        _say(f"{'would go' if options.dry_run else 'goes'}: {', '.join(candidate.names)}")
    if left:
        _say(f"{'would go' if options.dry_run else 'goes'}: {_counted(len(left), 'file')} of interrupted work")
    if not options.dry_run:
        pruning.remove(store, chosen.gone)
        pruning.discard(left)
    _say(f"{chosen.left_bytes / 1e9:.2f} GB stay")
    if chosen.over_bytes:
        return _failed(f"{chosen.over_bytes / 1e9:.2f} GB more than allowed are loaded or leased")
    return 0


def _loaded(server: str | None) -> set[str]:
    if not server:
        return set()
    try:
        _, body = ask(f"{server}/api/ps")
        return {str(model["name"]) for model in json.loads(body)["models"]}
    except (OSError, http.client.HTTPException) as exc:
        said = (exc.strerror if isinstance(exc, OSError) else "") or f"{exc}" or type(exc).__name__
        advice = "start it, or leave --server out if no server uses this store"
        raise ValueError(f"{server} cannot be asked what is loaded ({said}): {advice}") from exc
    except (Busy, KeyError, TypeError) as exc:
        raise ValueError(f"{server} does not say what is loaded: {exc}") from exc


def _require_store(store: Path, *, may_be_absent: bool) -> None:
    """Raise ValueError when there is something else than a store, or nothing where there should be one."""
    if store.is_dir() or (may_be_absent and not store.exists()):
        return
    wrong = "is no folder" if store.exists() else "does not exist"
    raise ValueError(f"{store} {wrong}: name a store of Ollama's, as --store ~/.ollama/models")


def _name(text: str) -> ModelName:
    try:
        return ModelName.parse(text)
    except ValueError as exc:
        form = "[namespace/]model[:tag], of letters, digits, '_', '.' and '-'"
        raise ValueError(f"{text!r:.120} cannot be a model's name: say {form}") from exc


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _failed(text: str) -> int:
    sys.stderr.write(f"models: {text}\n")
    return 1
