"""The SDK: imported without its two slow start-up habits, corrected, and run."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from worker import events
from worker.config import Config

if TYPE_CHECKING:
    from worker.adapter.flow import JobFlow
    from worker.adapter.loop import Loop
    from worker.shelf import Shelf


def import_sdk() -> str:
    """Import runpod in about a quarter of its usual time; return its version.

    py-cpuinfo starts a process that sleeps a second to name the CPU in a debugger nobody turned on; paramiko is for
    the command line's ssh. Both are imported by name at import time only, so an empty module in their place is
    enough, and it is taken away again afterwards.
    """
    stubs = {"cpuinfo": _cpuinfo(), "paramiko": types.ModuleType("paramiko")}
    placed = [name for name in stubs if name not in sys.modules]
    for name in placed:
        sys.modules[name] = stubs[name]
    try:
        from worker.adapter import loop  # noqa: F401, PLC0415 - importing the SDK is the point
    finally:
        for name in placed:
            del sys.modules[name]
    from runpod.version import __version__  # noqa: PLC0415 - only importable now

    return str(__version__)


def run(config: Config, writer: events.EventWriter, shelf: Shelf, *, on_start: Callable[[Loop], None]) -> None:
    """Run RunPod's loop until the platform or `Loop.kill_worker` ends it; `on_start` gets the loop first."""
    import runpod  # noqa: PLC0415 - imported while the server started

    from worker.adapter import loop  # noqa: PLC0415 - same
    from worker.adapter.delivery import Delivery  # noqa: PLC0415 - same
    from worker.adapter.flow import JobFlow  # noqa: PLC0415 - same

    flow = JobFlow(config, writer, shelf)

    class ConfiguredLoop(loop.Loop):
        """The loop with this worker's values; the SDK makes the instance."""

    ConfiguredLoop.flow = flow
    ConfiguredLoop.writer = writer
    ConfiguredLoop.concurrency = config.concurrency
    ConfiguredLoop.drain_timeout_s = config.drain_timeout_s
    ConfiguredLoop.on_start = staticmethod(on_start)
    loop.install(ConfiguredLoop, Delivery(writer, limit_s=config.delivery_timeout_s))
    runpod.serverless.start(_settings(flow, config))


def _settings(flow: JobFlow, config: Config) -> dict[str, Any]:
    return {
        "handler": flow.handle,
        "return_aggregate_stream": True,
        "concurrency_modifier": lambda _: config.concurrency,
    }


def _cpuinfo() -> types.ModuleType:
    module = types.ModuleType("cpuinfo")
    module.get_cpu_info = dict  # type: ignore[attr-defined] # the one name the SDK uses
    return module
