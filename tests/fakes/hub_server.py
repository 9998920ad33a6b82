"""A Hugging Face Hub on loopback: what its client asks to list a repository and to download from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.fakes.range_server import Answer, Request

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PER_PAGE = 3


@dataclass
class FakeHub:
    """Repositories by name, each a mapping of paths to contents.

    `token` is wanted for `gated` repositories. Files are given by a storage of their own, which wants a ticket; each is
    good for `uses` requests.
    """

    repositories: Mapping[str, Mapping[str, bytes]]
    gated: frozenset[str] = frozenset()
    token: str = "hf_secret"
    uses: int = 1_000_000
    tickets: dict[str, int] = field(default_factory=dict)

    def app(self, request: Request) -> Answer:
        """Answer one request."""
        parts = unquote(urlsplit(request.path).path).strip("/").split("/")
        if parts[0] == "storage":
            return self._stored(request, parts)
        if parts[:2] == ["api", "models"] and "tree" in parts:
            return self._checked(request, "/".join(parts[2:4]), parts[5]) or self._tree(request, "/".join(parts[2:4]))
        if len(parts) > 4 and parts[2] == "resolve":
            repo, path = "/".join(parts[:2]), "/".join(parts[4:])
            return self._checked(request, repo, parts[3]) or self._resolved(request, repo, path)
        return Answer(404)

    def _checked(self, request: Request, repo: str, revision: str) -> Answer | None:
        allowed = request.headers.get("authorization") == f"Bearer {self.token}"
        if repo not in self.repositories:
            return Answer(401, headers={"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        if repo in self.gated and not allowed:
            return Answer(403, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        if revision not in {"main", COMMIT}:
            return Answer(404, headers={"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        return None

    def _tree(self, request: Request, repo: str) -> Answer:
        files = self.repositories[repo]
        entries: list[dict[str, Any]] = [
            {"type": "directory", "oid": COMMIT, "size": 0, "path": folder}
            for folder in sorted({path.rpartition("/")[0] for path in files} - {""})
        ]
        for path, data in sorted(files.items()):
            digest = hashlib.sha256(data).hexdigest()
            lfs = {"lfs": {"oid": digest, "size": len(data), "pointerSize": 134}} if path.endswith(".gguf") else {}
            entries.append({"type": "file", "oid": COMMIT, "size": len(data), "path": path, **lfs})
        _, _, cursor = request.path.partition("cursor=")
        start = int(cursor or 0)
        headers = {"Content-Type": "application/json"}
        if start + PER_PAGE < len(entries):
            base = f"http://{request.headers['host']}{request.path.partition('&cursor=')[0]}"
            headers["Link"] = f'<{base}&cursor={start + PER_PAGE}>; rel="next"'
        return Answer(body=json.dumps(entries[start : start + PER_PAGE]).encode(), headers=headers)

    def _resolved(self, request: Request, repo: str, path: str) -> Answer:
        data = self.repositories[repo].get(path)
        if data is None:
            return Answer(404, headers={"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        # Another host, as the Hub's storage is.
        storage = f"localhost:{request.headers['host'].rpartition(':')[2]}"
        ticket = str(len(self.tickets))
        self.tickets[ticket] = 0
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(data)),
            "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "ETag": f'"{COMMIT}"',
            "Location": f"http://{storage}/storage/{repo}/{path}?ticket={ticket}",
        }
        return Answer(302, headers=headers)

    def _stored(self, request: Request, parts: list[str]) -> Answer:
        ticket = request.path.rpartition("ticket=")[2]
        if ticket not in self.tickets or "authorization" in request.headers:
            return Answer(403)
        self.tickets[ticket] += 1
        if self.tickets[ticket] > self.uses:
            return Answer(403)
        return Answer(body=self.repositories["/".join(parts[1:3])]["/".join(parts[3:])], ranges=True)
