"""Why the queue refuses a request; each reason is one HTTP status and one sentence."""

from __future__ import annotations

from typing import ClassVar


class Refused(Exception):
    """The request is answered with `status` and the message, and changes nothing."""

    status: ClassVar[int] = 400


class HungUp(Exception):
    """Whoever asked has closed the connection; there is nobody to answer."""


class Unauthorized(Refused):
    """The API key is missing or wrong."""

    status = 401


class EndpointUnknown(Refused):
    """There is one endpoint here, and it has another id."""

    status = 404


class JobUnknown(Refused):
    """No such job: it never was, was purged, or has expired."""

    status = 404
