"""Who may call the gateway: a key that clients send, and the web pages a browser may call it from."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

_SCHEME = "bearer "
# What a page may send, and what it may read of an answer.
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Api-Key, Anthropic-Version, X-Runpod-Worker-Id",
    "Access-Control-Max-Age": "600",
}


class Access:
    """The rules of one worker; without a key and without origins everyone may call, from no web page."""

    def __init__(self, api_key: str | None, origins: str | None) -> None:
        """Ask for `api_key`; let pages of `origins` call, separated by commas, or `*`."""
        self._key = api_key.encode("utf-8", "surrogateescape") if api_key else None
        self._origins = {origin.strip().rstrip("/") for origin in origins.split(",")} if origins else set()

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request carries the key: as a bearer token, or where Anthropic's clients put theirs.

        The second way also serves an endpoint whose platform takes the Authorization header for its own key.
        """
        if self._key is None:
            return True
        bearer = headers.get("Authorization", "")
        sent = [bearer[len(_SCHEME) :].strip()] if bearer.lower().startswith(_SCHEME) else []
        sent.append(headers.get("X-Api-Key", ""))
        # Every comparison is made, each in a time that does not depend on where the first difference is.
        matches = [hmac.compare_digest(key.encode("utf-8", "surrogateescape"), self._key) for key in sent]
        return any(matches)

    def cors(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that let the calling page read the answer, or none."""
        origin = headers.get("Origin", "")
        if not origin or not self._origins & {"*", origin}:
            return {}
        return {"Access-Control-Allow-Origin": "*" if "*" in self._origins else origin, "Vary": "Origin"}

    def preflight(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return what a browser wants to know before it lets a page call, or nothing."""
        allowed = self.cors(headers)
        return allowed | _PREFLIGHT if allowed else {}
