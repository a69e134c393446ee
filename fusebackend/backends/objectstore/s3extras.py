"""`S3Extras`: what a volume can do in S3 beyond obstore, in the volume's own words; keys are relative to its prefix.

Only where the keys of the service are known to us (given, or in the environment): with credentials that obstore fetches
from a machine's metadata service there are no extras, and the volume does without.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

from fusebackend.backends.objectstore.names import Found
from fusebackend.backends.objectstore.s3client import S3Client

COPY_BYTES = 5 << 30
"""The largest object that one request copies."""

_HEADERS = {
    "content-type": "content-type",
    "content-encoding": "content-encoding",
    "content-language": "content-language",
    "content-disposition": "content-disposition",
    "cache-control": "cache-control",
}


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
            tree = ElementTree.fromstring(self._client.request("GET", f"/{self._bucket}", query).body)
            for element in tree.iter():
                element.tag = element.tag.rpartition("}")[2]
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
        source = f"/{self._bucket}/{quote(self._prefix + key)}"
        headers = {"x-amz-copy-source": source, "x-amz-metadata-directive": "REPLACE"}
        if etag is not None:
            headers["x-amz-copy-source-if-match"] = etag
        for name, text in attributes.items():
            headers[_HEADERS.get(name.lower(), f"x-amz-meta-{name.lower()}")] = text
        answer = self._client.request("PUT", source, headers=headers)
        tree = ElementTree.fromstring(answer.body)
        found = next((element.text for element in tree.iter() if element.tag.rpartition("}")[2] == "ETag"), None)
        if found is None:
            return etag
        return found if found.startswith('"') else f'"{found}"'

    def delete(self, key: str) -> None:
        """Delete an object; its key may end with a slash."""
        self._client.request("DELETE", f"/{self._bucket}/{quote(self._prefix + key)}")

    def close(self) -> None:
        self._client.close()


def _key(item: ElementTree.Element, name: str) -> str:
    return unquote_plus(item.findtext(name) or "")
