"""An S3 service on loopback that lists, gives ranges, and checks every signature with Amazon's own code."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.fakes.range_server import Answer, Request

ACCESS_KEY, SECRET_KEY = "AKEXAMPLE", "very/secret"
PER_PAGE = 2


@dataclass
class FakeS3:
    """Buckets by name, each a mapping of keys to contents; with `signed` false everybody may read.

    `metadata` gives objects (by key) headers, `valid_s` is how long an address is good for.
    """

    buckets: dict[str, dict[str, bytes]]
    region: str = "us-east-1"
    signed: bool = True
    metadata: Mapping[str, Mapping[str, str]] = ()
    valid_s: float = 3600.0

    def app(self, request: Request) -> Answer:
        """Answer one request."""
        parts = urlsplit(request.path)
        if self.signed and not self._allowed(request):
            return Answer(403, body=b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if bucket not in self.buckets:
            return Answer(404)
        if not key:
            return self._list(bucket, {name: values[0] for name, values in parse_qs(parts.query).items()})
        data = self.buckets[bucket].get(key)
        if data is None:
            return Answer(404)
        own = dict(self.metadata).get(key, {})
        return Answer(
            body=data, headers={"ETag": f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"', **own}, ranges=True
        )

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        keys = sorted(key for key in self.buckets[bucket] if key.startswith(query.get("prefix", "")))
        keys = [key for key in keys if key > query.get("continuation-token", "")]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.buckets[bucket][key])}</Size>"
            f'<ETag>"{hashlib.md5(self.buckets[bucket][key], usedforsecurity=False).hexdigest()}"</ETag></Contents>'
            for key in keys[:PER_PAGE]
        )
        more = f"<NextContinuationToken>{escape(keys[PER_PAGE - 1])}</NextContinuationToken>" if keys[PER_PAGE:] else ""
        body = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{entries}{more}</ListBucketResult>'
        return Answer(body=body.encode(), headers={"Content-Type": "application/xml"})

    def _allowed(self, request: Request) -> bool:
        parts = urlsplit(request.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        if "X-Amz-Signature" not in query:
            return False
        stamp = query["X-Amz-Date"][0]
        signed_at = dt.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.timezone.utc)
        if (dt.datetime.now(dt.timezone.utc) - signed_at).total_seconds() > self.valid_s:
            return False
        plain = "&".join(
            f"{quote(n, safe='~')}={quote(v[0], safe='~')}" for n, v in query.items() if not n.startswith("X-Amz-")
        )
        again = AWSRequest(
            request.method, f"http://{request.headers['host']}{parts.path}" + (f"?{plain}" if plain else "")
        )
        signer = _SignerAt(
            Credentials(ACCESS_KEY, SECRET_KEY), "s3", self.region, expires=int(query["X-Amz-Expires"][0])
        )
        signer.stamp = stamp
        signer.add_auth(again)
        return parse_qs(urlsplit(again.url).query)["X-Amz-Signature"] == query["X-Amz-Signature"]


class _SignerAt(botocore.auth.S3SigV4QueryAuth):
    """Signs as of the time the request says."""

    stamp = ""

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        request.context["timestamp"] = self.stamp
        super()._modify_request_before_signing(request)
