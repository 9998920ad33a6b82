"""An image that carries its model: pulled while it is built, or copied from a store at hand."""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.image import bases
from tests.image.conftest import MODEL, Build
from tests.image.container import Container, worker_environ
from tests.image.engine import Engine

pytestmark = [pytest.mark.timeout(1200), pytest.mark.usefixtures("image")]


def answers_by_itself(docker: Engine, image: str) -> str:
    """Return the model an image answers with when nothing is mounted and nothing says which one."""
    with Container(docker, image, {**worker_environ(), "WORKER_ALLOW_CPU": "1"}) as container:
        status = container.queue().wait(container.queue().submit({"prompt": "Hi", "options": {"num_predict": 4}}))
        assert status["status"] == "COMPLETED", container.tail()
        assert not [record for record in container.records if record["event"] == "source.passed_over"]
        return str(status["output"][0]["model"])


def test_a_store_at_hand_is_baked_in(docker: Engine, build: Build, context: Path, store: Path) -> None:
    build(context, "worker:baked", f"--build-context=models={store}", f"--build-arg=BAKE_MODEL={MODEL}")

    assert answers_by_itself(docker, "worker:baked") == MODEL


def test_a_model_is_pulled_while_the_image_is_built(
    docker: Engine, build: Build, context: Path, store: Path, tmp_path: Path
) -> None:
    build(context, "go:binary", "--target=ollama-build")
    certificate = make_certificate(docker, tmp_path)
    text = (
        f"FROM {bases.references()['OLLAMA']}\nCOPY --from=go:binary /ollama /usr/bin/ollama\n"
        "COPY --from=here certificate.pem /\nENV SSL_CERT_FILE=/certificate.pem\n"
    )
    bases.build(docker, tmp_path / "with-binary", text, "ollama/ollama:with-binary", {"here": certificate.parent})
    with registry(store, certificate) as host:
        name = f"{host}/library/{MODEL}"
        build(
            context, "worker:pulled", "--build-arg=OLLAMA=ollama/ollama:with-binary", f"--build-arg=BAKE_MODEL={name}"
        )

    assert answers_by_itself(docker, "worker:pulled") == name


def make_certificate(docker: Engine, directory: Path) -> Path:
    """Make a key and a certificate for 127.0.0.1 in one file."""
    made = directory / "tls" / "certificate.pem"
    made.parent.mkdir()
    subject = ("-subj", "/CN=stand-in registry", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    done = docker.inside(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject),
        *("-keyout", str(made), "-out", f"{made}.part"),
    )
    assert done.returncode == 0, done.stderr
    made.write_text(made.read_text() + Path(f"{made}.part").read_text())
    return made


@contextlib.contextmanager
def registry(store: Path, certificate: Path) -> Iterator[str]:
    """Serve a store as Ollama's registry does, over HTTPS; yield host and port."""

    class Registry(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if "/blobs/" in self.path and self.headers["Host"].startswith("127.0.0.1") and self.command == "GET":
                # Blobs are elsewhere, at a host of another name: Ollama wants to be sent there.
                self.send_response(307)
                self.send_header("Location", f"https://localhost:{self.server.server_port}{self.path}")
                return self.finish_with(b"")
            content = file_of(store, self.path)
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if content is not None and span:
                content = content[int(span[1]) : int(span[2]) + 1]
            self.send_response(404 if content is None else 206 if span else 200)
            return self.finish_with(content or b"")

        do_HEAD = do_GET  # noqa: N815 - http.server's own spelling

        def finish_with(self, content: bytes) -> None:
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def file_of(store: Path, path: str) -> bytes | None:
    """Return the bytes behind /v2/library/NAME/manifests/TAG or /v2/library/NAME/blobs/DIGEST."""
    match = re.fullmatch(r"/v2/library/([\w.-]+)/(manifests|blobs)/([\w.:-]+)", path)
    if match is None:
        return None
    manifests = store / "manifests/registry.ollama.ai/library"
    file = manifests / match[1] / match[3] if match[2] == "manifests" else store / "blobs" / match[3].replace(":", "-")
    return file.read_bytes() if file.is_file() else None
