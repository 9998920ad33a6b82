"""The facts of the worker's and its server's processes; the only ones that are needed before the server is started."""

from __future__ import annotations

from dataclasses import dataclass

from worker.events.event import Event


@dataclass(frozen=True)
class ContainerStarted(Event, name="container.started"):
    """start.sh ran its first line; stamped with the time taken there."""


@dataclass(frozen=True)
class WorkerStarted(Event, name="worker.started"):
    """Python reached the first line of handler.py."""

    pid: int
    version: str


@dataclass(frozen=True)
class ServerSpawned(Event, name="server.spawned"):
    """The server process exists."""

    pid: int
    argv: list[str]


@dataclass(frozen=True)
class ServerLogged(Event, name="server.logged"):
    """One line of the server or its runner, stamped when it arrived."""

    line: str


@dataclass(frozen=True)
class ServerAnswered(Event, name="server.answered"):
    """The server answered HTTP 200 (its own "Listening" line comes earlier and means less)."""

    version: str


@dataclass(frozen=True)
class ServerExited(Event, name="server.exited"):
    """The server ended without having been asked to."""

    return_code: int


@dataclass(frozen=True)
class ServerStopped(Event, name="server.stopped"):
    """The server and everything it started are gone because we asked."""

    return_code: int


@dataclass(frozen=True)
class WorkerStopping(Event, name="worker.stopping"):
    """No new job is taken from here on."""

    reason: str


@dataclass(frozen=True)
class WorkerStopped(Event, name="worker.stopped"):
    """The last line of a worker."""

    exit_code: int
