"""S3 and what speaks its protocol: addresses signed for a while, listings, and what is known of an object."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from worker.http_answer import TransferFailed, ask

EXPIRES_S = 3600
# The first outranks the second.
ENDPOINT_VARIABLES = "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL"
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class S3Object:
    """One object: key, size in bytes, entity tag, and its sha256 in hex where its metadata tell."""

    key: str
    size_bytes: int
    etag: str
    sha256: str = ""


@dataclass(frozen=True)
class Bucket:
    """A bucket and how to get at it; without keys requests are not signed.

    `endpoint` is for other services than Amazon's, which are asked with the bucket in the path.
    """

    name: str
    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def address(self, key: str, *, method: str = "GET", query: Mapping[str, str] | None = None) -> str:
        """Return a URL for one object (or with key "" for the bucket) that is good for an hour."""
        return self._signed(key, method, dict(query or {}), dt.datetime.now(dt.timezone.utc))

    def list(self, prefix: str) -> Iterator[S3Object]:
        """Yield the objects whose keys begin with `prefix`, in order of key; raise as `http_answer.ask` does."""
        token: str | None = ""
        while token is not None:
            query = {"list-type": "2", "prefix": prefix, **({"continuation-token": token} if token else {})}
            _, body = ask(self.address("", query=query), limit_bytes=64 << 20)
            listing = _parsed(body)
            for entry in listing.iterfind("{*}Contents"):
                yield S3Object(_text(entry, "Key"), int(_text(entry, "Size")), _text(entry, "ETag").strip('"'))
            token = _text(listing, "NextContinuationToken") or None

    def head(self, key: str) -> S3Object:
        """Return what is known of one object; raise as `http_answer.ask` does."""
        headers, _ = ask(self.address(key, method="HEAD"), method="HEAD")
        return S3Object(
            key,
            int(headers.get("Content-Length", "0")),
            headers.get("ETag", "").strip('"'),
            headers.get("x-amz-meta-sha256", "").lower(),
        )

    def read(self, key: str, limit_bytes: int = 16 << 20) -> bytes:
        """Return the content of a small object; raise as `http_answer.ask` does."""
        return ask(self.address(key), limit_bytes=limit_bytes)[1]

    def _place(self, key: str) -> tuple[str, str, str]:
        """Return scheme, host and path; a bucket with dots does not fit under Amazon's certificates as a host.

        Raises:
            TransferFailed: the endpoint is no http address.
        """
        if self.endpoint:
            parts = urlsplit(self.endpoint if "://" in self.endpoint else f"https://{self.endpoint}")
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise TransferFailed(f"{self.endpoint!r:.120} is no http address: {ENDPOINT_VARIABLES} must be one")
            return parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{self.name}/{quote(key, safe='/~')}"
        host = f"s3.{self.region}.amazonaws.com"
        if "." in self.name:
            return "https", host, f"/{self.name}/{quote(key, safe='/~')}"
        return "https", f"{self.name}.{host}", f"/{quote(key, safe='/~')}"

    def _signed(self, key: str, method: str, query: dict[str, str], now: dt.datetime) -> str:
        scheme, host, path = self._place(key)
        if self.access_key:
            stamp = now.strftime("%Y%m%dT%H%M%SZ")
            scope = f"{stamp[:8]}/{self.region}/s3/aws4_request"
            query |= {
                "X-Amz-Algorithm": _ALGORITHM,
                "X-Amz-Credential": f"{self.access_key}/{scope}",
                "X-Amz-Date": stamp,
                "X-Amz-Expires": str(EXPIRES_S),
                "X-Amz-SignedHeaders": "host",
                **({"X-Amz-Security-Token": self.session_token} if self.session_token else {}),
            }
            request = "\n".join((method, path, _encoded(query), f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"))
            text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
            query["X-Amz-Signature"] = hmac.new(self._key(scope), text.encode(), hashlib.sha256).hexdigest()
        return f"{scheme}://{host}{path}" + (f"?{_encoded(query)}" if query else "")

    def _key(self, scope: str) -> bytes:
        key = f"AWS4{self.secret_key}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key


NO_BUCKET = Bucket("")


def taken_apart(url: str) -> tuple[str, str]:
    """Return bucket and key of s3://bucket/key; raise ValueError when it is not one."""
    scheme, mark, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not mark or not bucket:
        raise ValueError(f"{url!r:.120} is not s3://bucket/key")
    return bucket, key


def _encoded(query: Mapping[str, str]) -> str:
    return "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in sorted(query.items()))


def _parsed(body: bytes) -> ET.Element:
    if b"<!DOCTYPE" in body:
        raise TransferFailed("the listing defines entities of its own")
    try:
        return ET.fromstring(body)  # noqa: S314 - without a document type there is nothing to expand
    except ET.ParseError as exc:
        raise TransferFailed("the listing cannot be understood") from exc


def _text(element: ET.Element, name: str) -> str:
    found = element.find(f"{{*}}{name}")
    return (found.text or "") if found is not None else ""
