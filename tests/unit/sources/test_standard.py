from __future__ import annotations

from pathlib import Path

import pytest

from worker.s3 import Bucket
from worker.sources.base import SOURCES
from worker.sources.standard import Places, object_storage, sources


def test_every_source_is_there_in_the_order_of_preference(tmp_path: Path) -> None:
    stores = (("local", tmp_path / "baked"), ("volume", tmp_path / "volume"))
    found = [source.name for source in sources(Places(stores, server_url="http://127.0.0.1:9"))]
    assert found == ["local", *SOURCES]
    assert [source.name for source in sources(Places())] == ["local", "model_store", "object_store", "hub"]


def test_near_ones_are_told_from_far_ones() -> None:
    assert {source.name: source.far for source in sources(Places(server_url="http://127.0.0.1:9"))} == {
        "local": False,
        "model_store": False,
        "object_store": True,
        "hub": True,
        "registry": True,
    }


ENVIRON = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}


@pytest.mark.parametrize(
    ("environ", "mirror", "account", "prefix"),
    [
        ({}, "", Bucket(""), ""),
        (ENVIRON, "s3://models/a/b", Bucket("models", "", "us-east-1", "a", "s", "t"), "a/b"),
        (
            {"AWS_DEFAULT_REGION": "x", "AWS_REGION": "eu-1", "AWS_ENDPOINT_URL": "u", "AWS_ENDPOINT_URL_S3": "v"},
            "s3://m",
            Bucket("m", "v", "eu-1"),
            "",
        ),
        ({"AWS_DEFAULT_REGION": "x", "AWS_ENDPOINT_URL": "u"}, "", Bucket("", "u", "x"), ""),
    ],
)
def test_the_account_is_what_amazons_variables_say(
    environ: dict[str, str], mirror: str, account: Bucket, prefix: str
) -> None:
    assert object_storage(environ, mirror) == (account, prefix)


def test_a_mirror_that_is_no_bucket_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not s3://bucket/key"):
        object_storage({}, "https://bucket/")
