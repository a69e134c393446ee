"""An S3 service for tests: it makes and drops buckets, and sends requests that obstore does not offer."""

from __future__ import annotations

import contextlib
import errno
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

REGION = "us-east-1"


@dataclass(frozen=True)
class Service:
    """The address of the service, and the credentials for it."""

    endpoint: str
    key: str
    secret: str

    def request(self, method: str, path: str, query: dict[str, str], body: bytes, headers: dict[str, str]) -> Any:
        """One signed request; OSError for any answer that is no success."""
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials
        from botocore.exceptions import BotoCoreError
        from botocore.httpsession import URLLib3Session

        request = AWSRequest(method, self.endpoint + path, headers, body, query)
        S3SigV4Auth(Credentials(self.key, self.secret), "s3", REGION).add_auth(request)
        session = URLLib3Session(timeout=30)
        try:
            answer = session.send(request.prepare())
        except BotoCoreError as error:
            raise OSError(errno.EIO, str(error)) from None
        finally:
            session.close()
        if answer.status_code >= 300:
            raise OSError(errno.EIO, f"{method} {path}: {answer.status_code} {answer.content[:200]!r}")
        return answer

    def takes_objects(self) -> bool:
        name = f"probe-{uuid.uuid4().hex[:12]}"
        try:
            with self.bucket(name) as bucket:
                bucket.put("probe", b"x")
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def bucket(self, name: str | None = None) -> Iterator[Bucket]:
        """Make an empty bucket; drop it with its objects at the end of the block."""
        bucket = Bucket(self, name or f"test-{uuid.uuid4().hex[:12]}")
        bucket.request("PUT", "")
        try:
            yield bucket
        finally:
            with contextlib.suppress(OSError):  # the server may have been killed
                bucket.request("DELETE", "")


@dataclass(frozen=True)
class Bucket:
    """One bucket, as other clients see it: raw keys."""

    service: Service
    name: str

    def request(self, method: str, key: str, query: dict[str, str] | None = None, body: bytes = b"",
                headers: dict[str, str] | None = None) -> Any:  # fmt: skip
        path = f"/{self.name}" + (f"/{urllib.parse.quote(key, safe='/~')}" if key else "")
        return self.service.request(method, path, query or {}, body, headers or {})

    def put(self, key: str, body: bytes, **attributes: str) -> None:
        self.request("PUT", key, body=body, headers={f"x-amz-meta-{name}": text for name, text in attributes.items()})

    def get(self, key: str) -> bytes:
        return bytes(self.request("GET", key).content)

    def attributes(self, key: str) -> dict[str, str]:
        """Return the object's metadata."""
        headers = self.request("HEAD", key).headers
        return {name[11:].lower(): text for name, text in headers.items() if name.lower().startswith("x-amz-meta-")}

    def delete(self, key: str) -> None:
        self.request("DELETE", key)

    def all_keys(self) -> list[str]:
        """Return all keys, sorted."""
        found: list[str] = []
        after: dict[str, str] = {}
        while True:
            answer = self.request("GET", "", {"list-type": "2", "encoding-type": "url", **after})
            tree = ElementTree.fromstring(answer.content)
            for element in tree.iter():
                element.tag = element.tag.rpartition("}")[2]
            found += [urllib.parse.unquote_plus(item.findtext("Key") or "") for item in tree.findall("Contents")]
            token = tree.findtext("NextContinuationToken")
            if not token:
                return sorted(found)
            after = {"continuation-token": token}

    def url(self, prefix: str = "", **parameters: str) -> str:
        """Return the backend URL of the bucket."""
        words = {
            "endpoint": self.service.endpoint,
            "region": REGION,
            "access_key_id": self.service.key,
            "secret_access_key": self.service.secret,
            **parameters,
        }
        query = "&".join(f"{word}={urllib.parse.quote(text, safe='')}" for word, text in words.items())
        return f"s3://{self.name}/{prefix}?{query}"

    def options(self) -> dict[str, Any]:
        """Return the arguments of `S3Backend`."""
        return {
            "endpoint": self.service.endpoint,
            "region": REGION,
            "access_key_id": self.service.key,
            "secret_access_key": self.service.secret,
        }
