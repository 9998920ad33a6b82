"""A registry of models on loopback, as `ollama pull` asks one: manifests by name, blobs by digest, in ranges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.fakes.range_server import Answer, Request
from worker.manifest import MANIFEST_TYPE


@dataclass
class FakeRegistry:
    """Gives what the store at `models` has, whatever host its manifests are filed under."""

    models: Path

    def app(self, request: Request) -> Answer:
        """Answer one request."""
        parts = urlsplit(request.path).path.strip("/").split("/")
        if parts[0] == "storage":
            path = self.models / "blobs" / parts[-1].replace(":", "-")
            return Answer(body=path.read_bytes(), ranges=True) if path.is_file() else Answer(404)
        if len(parts) != 5 or parts[0] != "v2":
            return Answer(404)
        _, namespace, model, kind, reference = parts
        if kind == "manifests":
            found = next((self.models / "manifests").glob(f"*/{namespace}/{model}/{reference}"), None)
            headers = {"Content-Type": MANIFEST_TYPE}
            return Answer(body=found.read_bytes(), headers=headers) if found else Answer(404, body=b'{"errors":[]}')
        if request.method == "HEAD":
            return Answer(body=(self.models / "blobs" / reference.replace(":", "-")).read_bytes())
        # Blobs lie on another host, and pulls rely on being sent there.
        port = request.headers["host"].rpartition(":")[2]
        return Answer(307, headers={"Location": f"http://localhost:{port}/storage/{reference}"})
