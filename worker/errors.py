"""Every failure the worker can name, and what the person who meets it should do.

WorkerError(message, hint, retryable)
├── BootError(exit_code)       the worker cannot serve; it prints one line and exits
│   ├── ConfigInvalid      10  the environment contradicts itself; every problem at once
│   ├── GpuUnusable        11  no device here can run the kernels of this image
│   ├── WeightsUnavailable 12  no source has the model; carries every Miss
│   ├── ServerExited       13  the server process ended; return code and the tail of its log
│   └── ServerTimeout      14  a boot stage took longer than its limit
└── JobError(status)           this job fails, the worker lives on
    ├── JobInvalid        400  the input cannot be understood
    ├── RouteForbidden    403  the route is not open to jobs
    ├── ModelNotFound     404  the model is not in the store
    ├── ServerRejected      *  the server's own status and message
    ├── ServerLost        502  the server went away while answering; safe to send again
    └── JobTimeout        504  the server stopped producing tokens
"""

from __future__ import annotations

from typing import ClassVar


class WorkerError(Exception):
    """A failure with a name, a sentence, and what to do about it."""

    code: ClassVar[str] = "worker_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, hint: str = "") -> None:
        """Keep what happened (`message`) apart from what to do (`hint`)."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def sentence(self) -> str:
        """Return message and hint as one line of text for a person."""
        text = f"{self.message.rstrip('.')}. {self.hint}" if self.hint else self.message
        return " ".join(text.split())


class BootError(WorkerError):
    """The worker cannot serve: printed once, then the process exits with `exit_code`."""

    code = "boot_error"
    exit_code: ClassVar[int] = 1


class ConfigInvalid(BootError):
    """The environment is wrong; the message lists every problem found."""

    code = "config_invalid"
    exit_code = 10


class GpuUnusable(BootError):
    """No device here can run what the image carries, and running on the CPU was not allowed."""

    code = "gpu_unusable"
    exit_code = 11


class WeightsUnavailable(BootError):
    """No source could provide the model."""

    code = "weights_unavailable"
    exit_code = 12


class ServerExited(BootError):
    """The server process ended by itself."""

    code = "server_exited"
    exit_code = 13
    retryable = True

    def __init__(self, return_code: int, log_tail: list[str], hint: str = "") -> None:
        """Describe the end of the server; a negative `return_code` is the signal that ended it."""
        how = f"was killed by signal {-return_code}" if return_code < 0 else f"exited with code {return_code}"
        said = next((line.strip() for line in reversed(log_tail) if line.strip()), "")
        # What it said last is why it left, unless somebody ended it.
        last = "" if not said else f"; its last line was: {said}" if return_code < 0 else f": {said}"
        super().__init__(f"the server {how}{last}", hint)
        self.return_code = return_code
        self.log_tail = log_tail


class ServerTimeout(BootError):
    """A boot stage did not finish within its limit."""

    code = "server_timeout"
    exit_code = 14
    retryable = True

    def __init__(self, stage: str, limit_s: float, hint: str = "") -> None:
        """Name the `stage` that hung and the limit it had, in seconds."""
        super().__init__(f"stage '{stage}' did not finish within {limit_s:g} s", hint)
        self.stage = stage
        self.limit_s = limit_s


class JobError(WorkerError):
    """One job fails; the worker goes on. `status` is the HTTP status a client would have seen."""

    code = "job_error"
    status: int = 500


class JobInvalid(JobError):
    """The input cannot be understood; sending it again unchanged fails again."""

    code = "invalid_request_error"
    status = 400


class RouteForbidden(JobError):
    """The route exists on the server but is not open to jobs."""

    code = "route_forbidden"
    status = 403


class ModelNotFound(JobError):
    """The model is not in the store."""

    code = "not_found_error"
    status = 404


class ServerRejected(JobError):
    """The server answered with an error of its own; its status and words are kept."""

    code = "api_error"

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        """Carry the server's HTTP `status` and error text."""
        super().__init__(message, hint)
        self.status = status


class ServerLost(JobError):
    """The server went away while it was answering."""

    code = "server_lost"
    status = 502
    retryable = True


class JobTimeout(JobError):
    """The server produced nothing for longer than allowed."""

    code = "timeout"
    status = 504
    retryable = True
