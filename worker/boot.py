"""The boot flow: one fork, one join, and a model that is resident before the first job is taken."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from worker import events, manifest
from worker.config import Config
from worker.errors import ServerExited, WeightsUnavailable
from worker.names import ModelName
from worker.progress import Progress
from worker.residency import Residency, require_gpu
from worker.server import Server

if TYPE_CHECKING:
    from worker.choice import Choice

EXIT_NOTICED_S = 1.0


def boot(
    config: Config,
    *,
    server: Server,
    writer: events.EventWriter,
    import_sdk: Callable[[], str] | None,
    judge: Callable[[], Choice | None],
) -> None:
    """Make the model resident in the started `server`; import the SDK and judge the GPU backend meanwhile.

    Raises:
        BootError: the worker cannot serve; the server may still be running and is the caller's to stop.
    """
    with ThreadPoolExecutor(2, thread_name_prefix="boot") as branches:
        verdict = branches.submit(_judge, judge, writer)
        sdk: list[Future[None]] = []

        def start_sdk() -> None:
            if import_sdk is not None and not sdk:
                sdk.append(branches.submit(_import_sdk, import_sdk, writer))

        _make_resident(config, server=server, writer=writer, verdict=verdict, probed=start_sdk)
        for branch in sdk:
            branch.result()
    server.check()
    writer.write(events.BootReady(model=config.model))


def _judge(judge: Callable[[], Choice | None], writer: events.EventWriter) -> Choice | None:
    found = judge()
    if found is not None:
        writer.write(
            events.GpuJudged(backend=found.backend, outcome=found.outcome, reason=found.reason, upstream=found.upstream)
        )
    return found


def _make_resident(
    config: Config,
    *,
    server: Server,
    writer: events.EventWriter,
    verdict: Future[Choice | None],
    probed: Callable[[], None],
) -> None:
    there = _find_weights(config, writer=writer)
    residency = Residency(config.server_url)
    # Before anything is downloaded: a GPU this image cannot use will not become usable.
    found = verdict.result()
    if found is not None and not config.allow_cpu:
        found.require_usable()
    _wait_answering(server, residency, config=config, writer=writer, probed=probed)
    if not there:
        _pull_weights(server, config=config, writer=writer)
    writer.write(events.LoadStarted(model=config.model))
    try:
        resident = residency.load(config.model, config.load_timeout_s)
    except ServerExited:
        # The lost connection is noticed first; what the process left behind says why.
        server.wait_ended(EXIT_NOTICED_S)
        server.check()
        raise
    writer.write(
        events.LoadFinished(
            model=config.model,
            size_bytes=resident.size_bytes,
            size_vram_bytes=resident.size_vram_bytes,
            context_length=resident.context_length,
        )
    )
    if not config.allow_cpu:
        require_gpu(resident)


def _import_sdk(import_sdk: Callable[[], str], writer: events.EventWriter) -> None:
    writer.write(events.SdkImportStarted())
    writer.write(events.SdkImportFinished(version=import_sdk()))


def _wait_answering(
    server: Server,
    residency: Residency,
    *,
    config: Config,
    writer: events.EventWriter,
    probed: Callable[[], None],
) -> None:
    """Wait for the first HTTP 200; call `probed` after every look at the server.

    The SDK is imported from the first look on and not earlier: its import keeps the interpreter busy, and a server that
    answers already would wait for its load request.
    """
    version: list[str] = []

    def answered() -> bool:
        found = residency.version()
        if found is not None:
            version.append(found)
        probed()
        return found is not None

    server.wait_until(answered, "server start", config.server_timeout_s)
    writer.write(events.ServerAnswered(version=version[0]))


def _find_weights(config: Config, *, writer: events.EventWriter) -> bool:
    """Return whether the store has the whole model, judged from disk: the server need not be up for that."""
    writer.write(events.WeightsRequested(model=config.model))
    reason = "OLLAMA_MODELS is not set"
    if config.models is not None:
        models = Path(config.models)
        try:
            found = manifest.read(models, ModelName.parse(config.model))
            reason = "the model is not in the store" if found is None else "; ".join(found.lacks(models))
        except ValueError as exc:
            reason = str(exc)
    if reason:
        writer.write(events.SourcePassedOver(source="local", reason=reason))
    else:
        writer.write(events.WeightsPlaced(model=config.model, source="local"))
    return not reason


def _pull_weights(server: Server, *, config: Config, writer: events.EventWriter) -> None:
    from worker.sources import registry  # noqa: PLC0415 - most boots find the model and need no transfer

    def report(progress: Progress) -> None:
        writer.write(events.WeightsProgressed(source="registry", **progress.fields()))

    miss = registry.pull(config.server_url, config.model, limit_s=config.weights_timeout_s, report=report)
    if miss is not None:
        server.wait_ended(EXIT_NOTICED_S)
        server.check()
        writer.write(events.SourcePassedOver(source=miss.source, reason=miss.reason))
        hint = "Check OLLAMA_MODEL and the network, or put the model into the OLLAMA_MODELS folder"
        raise WeightsUnavailable(f"no source has {config.model!r}: {miss.source}: {miss.reason}", hint)
    writer.write(events.WeightsPlaced(model=config.model, source="registry"))
