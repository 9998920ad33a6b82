"""Runpod's queue on loopback: its HTTP API as the SDK's loop and as clients see it, with misbehaviour on demand."""

from worker.local.queue.errors import JobUnknown, Refused
from worker.local.queue.faults import (
    EMPTY,
    GARBAGE,
    HTML,
    NORMAL,
    NOTHING,
    NULL,
    RESET,
    WITHOUT_ID,
    WITHOUT_INPUT,
    Answer,
    Faults,
    Script,
)
from worker.local.queue.job import State
from worker.local.queue.limits import Limits
from worker.local.queue.local_queue import LocalQueue
from worker.local.queue.record import Call, Move, Record

__all__ = [
    "EMPTY",
    "GARBAGE",
    "HTML",
    "NORMAL",
    "NOTHING",
    "NULL",
    "RESET",
    "WITHOUT_ID",
    "WITHOUT_INPUT",
    "Answer",
    "Call",
    "Faults",
    "JobUnknown",
    "Limits",
    "LocalQueue",
    "Move",
    "Record",
    "Refused",
    "Script",
    "State",
]
