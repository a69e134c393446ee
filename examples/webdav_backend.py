"""A backend for WebDAV servers (RFC 4918), written against the public interface alone: the example of docs/backends.md.

    fusebackend mount /mnt/agent --default 'python:webdav_backend:WebdavBackend?url=https://files.example/home'
    fusebackend mount /mnt/agent --default 'davs://user:password@files.example/home'       # with the entry point below

`WebdavRemote` is a `Remote`: what is asked of the server, each one request, and `OSError`. `RemoteVolume` keeps
listings, buffers and conflicts over it, which makes the mount, and `RemoteBackend` the verbs of agents.

    contents, has   PROPFIND                 delete           DELETE
    head, load      GET                      rename           MOVE
    put             PUT, with If-None-Match: * for a new file and If-Match over the version that was read
    make_directory  MKCOL

A lost update is an error as far as the server keeps its word. wsgidav does so only in part: its ETags count whole
seconds, so two changes of equal length within one second look the same; and it compares first and writes then, so of
two conditional PUTs in the same millisecond both may succeed.

To register the URL schemes, a package of yours has in its pyproject.toml:

    [project.entry-points."fusebackend.backends"]
    dav = "webdav_backend:DAV"
    davs = "webdav_backend:DAVS"
"""

from __future__ import annotations

import email.utils
import errno
import logging
import os
from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

import httpx

from fusebackend.backends import RemoteBackend, RemoteVolume, digest_of
from fusebackend.protocol.remote import Abilities, Bytes, Contents, Etag, Head, Info, Remote, Stamp
from fusebackend.urls import Scheme, Url

logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of each request, in the server's log of a mount

TIMEOUT_S = 30.0
"""For one request to connect, and for each of its reads. The mount's own deadline for a route is shorter."""

ERRNO_OF_STATUS = {
    400: errno.EINVAL,
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENOENT,
    409: errno.ENOENT,  # a parent is missing (RFC 4918, 9.7.1)
    405: errno.EISDIR,  # PUT to a directory, MKCOL of one that is there
    412: errno.ESTALE,  # somebody else was quicker
    413: errno.EFBIG,
    414: errno.ENAMETOOLONG,
    423: errno.EBUSY,  # locked by another client
    507: errno.ENOSPC,
}
"""Any other status that is no success is EIO, with the server's words."""

PROPERTIES = b"""<?xml version="1.0" encoding="utf-8"?>
<propfind xmlns="DAV:"><prop><resourcetype/><getcontentlength/><getlastmodified/></prop></propfind>"""


class WebdavRemote(Remote):
    """The files below one URL. An ETag here is the server's, and the digest of the bytes that came with it."""

    abilities = Abilities(exact_sizes=True, keeps_directories=True, durable=True)

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{parts.scheme}:' is no URL of a WebDAV server; write http://HOST/PATH")
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self.name = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        verify = parts.scheme == "https"  # to load the certificates takes 0.2 s
        self._http = httpx.Client(auth=login, timeout=TIMEOUT_S, verify=verify)

    def close(self) -> None:
        self._http.close()

    # -- asking ------------------------------------------------------------------------------------------------

    def _ask(self, method: str, key: str, content: bytes | None = None, **headers: str) -> httpx.Response:
        """One request. Names of headers have `_` for `-`. A status that is no success is the `OSError` of the table."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            answer = self._http.request(method, self._url(key), content=content, headers=sent)
        except httpx.TimeoutException:
            raise _oserror(errno.ETIMEDOUT) from None
        except httpx.HTTPError as error:
            raise OSError(errno.EIO, f"{self.name}: {error}") from None
        if answer.is_success and (answer.status_code != 207 or method == "PROPFIND"):
            return answer
        number = ERRNO_OF_STATUS.get(answer.status_code)
        if number is None:  # among them 207: a part of a directory could not be moved or deleted
            raise OSError(errno.EIO, f"{self.name}: {method} answered {answer.status_code} {answer.reason_phrase}")
        raise _oserror(number)

    def _url(self, key: str) -> str:
        try:
            return f"{self.name}/{quote(key)}"
        except UnicodeEncodeError:  # a name that is not UTF-8
            raise _oserror(errno.EILSEQ) from None

    def _properties(self, key: str, depth: Literal["0", "1"]) -> list[tuple[str, Info]]:
        """A file or directory, and with depth 1 what is in it, by their keys without a slash at the end. ENOENT."""
        answer = self._ask("PROPFIND", key, PROPERTIES, Depth=depth, Content_Type="application/xml")
        root = unquote(urlsplit(self.name).path) + "/"
        found = []
        for response in ElementTree.fromstring(answer.content).iterfind("{DAV:}response"):
            where = unquote(urlsplit(response.findtext("{DAV:}href", "")).path)
            found.append((where.removeprefix(root).rstrip("/"), _info(where, response)))
        return found

    # -- what a mount and agents need --------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        found = self._properties(directory, "1")
        return Contents({
            os.fsencode(info.segment): info for key, info in found if key != directory.rstrip("/") and key
        })  # fmt: skip

    def has(self, key: str) -> bool:
        try:
            ((_, info),) = self._properties(key, "0")
        except FileNotFoundError:
            return False
        return info.is_dir == (key.endswith("/") or not key)

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        try:
            answer = self._ask("GET", key)
        except FileNotFoundError:
            return None
        data = answer.content
        etag = f"{answer.headers.get('ETag', '')} {digest_of(data).hex()}"
        return Head(len(data), etag, modified_ns=_time_ns(answer.headers.get("Last-Modified")), content=data)

    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        content, named = data.read(0, data.size), str(over or "").rpartition(" ")[0]
        condition = {"If_None_Match": "*"} if create else {"If_Match": named} if named.startswith('"') else {}
        answer = self._ask("PUT", key, content, **condition)  # a weak ETag (`W/…`) is no condition (RFC 9110, 13.1.1)
        return f"{answer.headers.get('ETag', '')} {digest_of(content).hex()}"

    def make_directory(self, directory: str, stamp: Stamp, *, replace: bool) -> Etag | None:
        try:
            self._ask("MKCOL", directory)
        except IsADirectoryError:  # 405: something is there
            if not replace:
                raise _oserror(errno.EEXIST) from None
        return None

    def delete(self, key: str) -> None:
        try:
            self._ask("DELETE", key)
        except FileNotFoundError:
            return

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        # A directory may be in the place of another one, which is empty, as has been seen.
        overwrite = "T" if replaced is not None or old.endswith("/") else "F"
        try:
            self._ask("MOVE", old, Destination=self._url(new), Overwrite=overwrite)
        except OSError as error:
            raise _oserror(errno.EEXIST) if error.errno == errno.ESTALE else error from None
        copied()
        return ()


class WebdavBackend(RemoteBackend):
    """The files below one URL of a WebDAV server.

    Args:
        url: of a collection that exists, such as `https://user:password@files.example/home`.
        on_exists: what an agent's `write` does to an existing file, `"error"` or `"replace"`.
        ttl_s: seconds for which a listing is believed. The server tells nobody of changes.

    Raises:
        ValueError: `url` is no http or https URL.
    """

    def __init__(self, url: str, *, on_exists: Literal["error", "replace"] = "error", ttl_s: float = 1.0) -> None:
        remote = WebdavRemote(url)
        super().__init__(RemoteVolume(remote, ttl_s=ttl_s), on_exists=on_exists)
        self._where = lambda: remote.name


def _oserror(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _info(where: str, response: ElementTree.Element) -> Info:
    """One `response` of a PROPFIND as an entry of a listing."""
    is_dir = response.find(".//{DAV:}resourcetype/{DAV:}collection") is not None
    size = response.findtext(".//{DAV:}getcontentlength")
    modified = response.findtext(".//{DAV:}getlastmodified")
    name = where.rstrip("/").rpartition("/")[2]
    return Info(name, is_dir, None if is_dir else int(size or 0), _time_ns(modified), (modified, size))


def _time_ns(http_date: str | None) -> int | None:
    return int(email.utils.parsedate_to_datetime(http_date).timestamp()) * 10**9 if http_date else None


# --------------------------------------------------------------------------------------------------------------
# URL schemes, for the entry points
# --------------------------------------------------------------------------------------------------------------


def _on_exists(value: str) -> str:
    if value not in ("error", "replace"):
        raise ValueError("must be 'error' or 'replace'")
    return value


def _scheme(name: str, protocol: str) -> Scheme:
    def open_backend(url: Url) -> WebdavBackend:
        return WebdavBackend(f"{protocol}:{url.rest}", **url.parameters)

    return Scheme(
        f"{name}://HOST/PATH",
        f"files of a WebDAV server, over {protocol}",
        open_backend,
        parameters={"on_exists": _on_exists, "ttl_s": float},
    )


DAV = _scheme("dav", "http")
DAVS = _scheme("davs", "https")
