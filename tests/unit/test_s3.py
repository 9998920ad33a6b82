from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.range_server import Answer, RangeServer, Request
from worker import s3
from worker.http_answer import Busy, TransferFailed
from worker.s3 import Bucket, S3Object, taken_apart

NOW = dt.datetime(2026, 11, 30, 4, 5, 6, tzinfo=dt.timezone.utc)
ACCOUNT = {"region": "eu-ro-1", "access_key": "AKEXAMPLE", "secret_key": "se/cr+et"}
# Everything a key may hold but what XML and HTTP cannot carry.
keys = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), min_size=1, max_size=30).filter(
    lambda key: not key.startswith("/")
)


def signature(url: str) -> str:
    return parse_qs(urlsplit(url).query)["X-Amz-Signature"][0]


def signed_by_amazon(url: str, method: str, token: str) -> str:
    """Sign the address anew with Amazon's own code, from what it says without its signature."""
    parts = urlsplit(url)
    plain = [pair for pair in parts.query.split("&") if not pair.startswith("X-Amz-")]
    address = f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{'&'.join(plain)}" if plain else "")
    request = AWSRequest(method, address)
    keys = Credentials(ACCOUNT["access_key"], ACCOUNT["secret_key"], token or None)
    botocore.auth.S3SigV4QueryAuth(keys, "s3", ACCOUNT["region"], expires=s3.EXPIRES_S).add_auth(request)
    return str(request.url)


@settings(max_examples=80, deadline=None)
@given(keys, st.sampled_from(["GET", "HEAD"]), st.sampled_from(["", "to/k+en=="]), st.sampled_from(["", "list"]))
def test_an_address_is_signed_as_amazon_signs_it(key: str, method: str, token: str, kind: str) -> None:
    bucket = Bucket("models", "http://127.0.0.1:9000", session_token=token, **ACCOUNT)
    query: Mapping[str, str] = {"list-type": "2", "prefix": key} if kind else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None))
        url = bucket._signed("" if kind else key, method, dict(query), NOW)
        assert signature(url) == signature(signed_by_amazon(url, method, token))


@pytest.mark.parametrize(
    ("bucket", "address"),
    [
        (Bucket("models", region="eu-west-1"), "https://models.s3.eu-west-1.amazonaws.com/a/m%20x.gguf"),
        (Bucket("my.models"), "https://s3.us-east-1.amazonaws.com/my.models/a/m%20x.gguf"),
        (Bucket("models", "https://s3api-eu-ro-1.runpod.io"), "https://s3api-eu-ro-1.runpod.io/models/a/m%20x.gguf"),
        (Bucket("models", "storage.example/base/"), "https://storage.example/base/models/a/m%20x.gguf"),
    ],
)
def test_where_an_object_is(bucket: Bucket, address: str) -> None:
    assert bucket.address("a/m x.gguf") == address


def test_keys_are_not_shown() -> None:
    assert "se/cr+et" not in repr(Bucket("models", session_token="to/k+en", **ACCOUNT))
    assert "to/k+en" not in repr(Bucket("models", session_token="to/k+en", **ACCOUNT))


@pytest.mark.parametrize(
    ("url", "parts"),
    [("s3://b/k/m.gguf", ("b", "k/m.gguf")), ("s3://b", ("b", "")), ("s3://b/", ("b", ""))],
)
def test_a_url_is_bucket_and_key(url: str, parts: tuple[str, str]) -> None:
    assert taken_apart(url) == parts


@pytest.mark.parametrize("url", ["s3://", "https://b/k", "b/k", "s3:///k"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not s3://bucket/key"):
        taken_apart(url)


def page(keys: list[str], following: str = "") -> bytes:
    entries = "".join(
        f'<Contents><Key>{key}</Key><Size>{len(key)}</Size><ETag>"e{key}"</ETag></Contents>' for key in keys
    )
    more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    return (
        f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{entries}{more}</ListBucketResult>'.encode()
    )


def test_a_long_listing_comes_in_pages() -> None:
    asked: list[dict[str, list[str]]] = []

    def app(request: Request) -> Answer:
        query = parse_qs(urlsplit(request.path).query)
        asked.append(query)
        return Answer(body=page(["c"]) if "continuation-token" in query else page(["a", "b&amp;1"], "next/one"))

    with RangeServer(app) as server:
        found = list(Bucket("models", server.url).list("org/"))
    assert found == [S3Object("a", 1, "ea"), S3Object("b&1", 7, "eb&1"), S3Object("c", 1, "ec")]
    assert asked == [
        {"list-type": ["2"], "prefix": ["org/"]},
        {"list-type": ["2"], "prefix": ["org/"], "continuation-token": ["next/one"]},
    ]


def test_what_is_known_of_an_object() -> None:
    headers = {"ETag": '"e1"', "x-amz-meta-sha256": "AB12", "Content-Length": "77"}
    with RangeServer(lambda _: Answer(headers=headers)) as server:
        assert Bucket("models", server.url).head("k") == S3Object("k", 77, "e1", "ab12")
        assert [(request.method, request.path) for request in server.requests] == [("HEAD", "/models/k")]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Answer(403), TransferFailed, "access is denied"),
        (Answer(404), TransferFailed, "there is no such file"),
        (Answer(503, headers={"Retry-After": "3"}), Busy, "HTTP 503"),
        (Answer(body=b"<html>"), TransferFailed, "the listing cannot be understood"),
        (Answer(body=b'<!DOCTYPE a [<!ENTITY b "b">]><a>&b;</a>'), TransferFailed, "defines entities of its own"),
    ],
)
def test_what_goes_wrong_is_said(answer: Answer, kind: type[Exception], words: str) -> None:
    with RangeServer(lambda _: answer) as server, pytest.raises(kind, match=words):
        list(Bucket("models", server.url).list(""))
