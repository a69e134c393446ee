"""`S3Extras`: what a volume can do in S3 beyond obstore, in the volume's own words; keys are relative to its prefix.

Only where the keys of the service are known to us (given, or in the environment): with credentials that obstore fetches
from a machine's metadata service there are no extras, and the volume does without.
"""

from __future__ import annotations

import datetime
import errno
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from fusebackend.backends.object_store.bucket.errors import ERRNO_OF_CODE
from fusebackend.backends.object_store.bucket.object_keys import Found
from fusebackend.backends.object_store.bucket.s3_client import S3Client
from fusebackend.base.errors import oserror

COPY_BYTES = 5 << 30
"""The largest object that one request copies."""

_HEADERS = frozenset({
    "content-type", "content-encoding", "content-language", "content-disposition", "cache-control",
})  # fmt: skip
"""Attributes that are no metadata of a user's."""


class S3Extras:
    """See the module's docstring."""

    def __init__(self, client: S3Client, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def list_directory(self, directory: str) -> tuple[list[str], list[Found]]:
        """The last parts of the prefixes in a directory, and its objects, whatever their keys are like."""
        start = len(self._prefix) + len(directory)
        query = {"list-type": "2", "delimiter": "/", "encoding-type": "url", "prefix": self._prefix + directory}
        prefixes: list[str] = []
        objects: list[Found] = []
        while True:
            tree = _tree(self._client.request("GET", f"/{self._bucket}", query).body)
            prefixes += [_key(item, "Prefix")[start:].removesuffix("/") for item in tree.findall("CommonPrefixes")]
            for item in tree.findall("Contents"):
                modified = datetime.datetime.fromisoformat(item.findtext("LastModified") or "1970-01-01T00:00:00Z")
                objects.append(
                    Found(
                        _key(item, "Key")[start:],
                        int(item.findtext("Size") or 0),
                        item.findtext("ETag"),
                        int(modified.timestamp()) * 10**9 + modified.microsecond * 1000,
                    )
                )
            token = tree.findtext("NextContinuationToken")
            if not token:
                return prefixes, objects
            query["continuation-token"] = token

    def restamp(self, key: str, etag: str | None, attributes: Mapping[str, str]) -> str | None:
        """Copy an object onto itself with other attributes; its ETag. ESTALE when it is not the version `etag`."""
        source = self._path(key)
        headers = {"x-amz-copy-source": source, "x-amz-metadata-directive": "REPLACE", **_headers(attributes)}
        if etag is not None:
            headers["x-amz-copy-source-if-match"] = etag
        return _etag(_tree(self._client.request("PUT", source, headers=headers).body)) or etag

    def delete(self, key: str) -> None:
        """Delete an object; its key may end with a slash."""
        self._client.request("DELETE", self._path(key))

    def _path(self, key: str) -> str:
        return f"/{self._bucket}/{quote(self._prefix + key)}"

    # -- uploads in parts --------------------------------------------------------------------------------------

    def begin_parts(self, key: str, attributes: Mapping[str, str]) -> str:
        """Begin an upload of an object with these attributes; its name."""
        answer = self._client.request("POST", self._path(key), {"uploads": ""}, headers=_headers(attributes))
        upload = _tree(answer.body).findtext("UploadId")
        if not upload:
            raise oserror(errno.EIO, key)
        return upload

    def put_part(self, key: str, upload: str, number: int, data: memoryview) -> str:
        """Send a part; numbers begin with 1. Its ETag."""
        query = {"partNumber": str(number), "uploadId": upload}
        return self._client.request("PUT", self._path(key), query, data).headers.get("etag", "")

    def end_parts(self, key: str, upload: str, etags: Sequence[str], condition: Mapping[str, str]) -> str | None:
        """Make the object of its parts, if the condition (headers) holds; its ETag. ESTALE."""
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        return _etag(_tree(self._client.request("POST", self._path(key), {"uploadId": upload}, body, condition).body))

    def abort_parts(self, key: str, upload: str) -> None:
        """Drop an upload and its parts; one that is not there is dropped."""
        try:
            self._client.request("DELETE", self._path(key), {"uploadId": upload})
        except FileNotFoundError:
            return

    def close(self) -> None:
        self._client.close()


def _headers(attributes: Mapping[str, str]) -> dict[str, str]:
    return {
        name.lower() if name.lower() in _HEADERS else f"x-amz-meta-{name.lower()}": text
        for name, text in attributes.items()
    }


def _tree(body: bytes) -> ElementTree.Element:
    """An answer without its namespaces. OSError for an error whose status was sent before the outcome was known."""
    tree = ElementTree.fromstring(body)
    for element in tree.iter():
        element.tag = element.tag.rpartition("}")[2]
    if tree.tag == "Error":
        raise oserror(ERRNO_OF_CODE.get(tree.findtext("Code") or "", errno.EIO))
    return tree


def _etag(tree: ElementTree.Element) -> str | None:
    found = next((element.text for element in tree.iter("ETag")), None)
    return found if found is None or found.startswith('"') else f'"{found}"'


def _key(item: ElementTree.Element, name: str) -> str:
    return unquote_plus(item.findtext(name) or "")
