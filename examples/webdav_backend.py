"""A backend for WebDAV servers (RFC 4918), written against the public interface alone: the example of docs/backends.md.

    fusebackend mount /mnt/agent --default 'python:webdav_backend:WebdavBackend?url=https://files.example/home'
    fusebackend mount /mnt/agent --default 'davs://user:password@files.example/home'       # with the entry point below

It is a backend of remote files (`FileVerbs`): six primitives that ask the server and raise `OSError`. The verbs of
agents are derived from them by `FileVerbs`, and the mount by `ForeignVolume`. Each of them is one request, as a rule:

    _list      PROPFIND, Depth: 1
    _load      GET
    _pieces    GET with Range and If-Match, 1 MiB at a time: all pieces are of one version of the file
    _put       PUT; with If-None-Match: * where an existing file is an error; MKCOL where a parent is missing
    _rewrite   GET, then PUT with If-Match
    _remove    DELETE
    _rename    MOVE with Overwrite: F
    upload_if  PUT with If-Match: what the mount stores when a file is closed

A lost update is an error as far as the server keeps its word. wsgidav does so only in part: its ETags count whole
seconds, so two changes of equal length within one second look the same; and it compares first and writes then, so of
two conditional PUTs in the same millisecond both may succeed.

To register the URL schemes, a package of yours has in its pyproject.toml:

    [project.entry-points."fusebackend.backends"]
    dav = "webdav_backend:DAV"
    davs = "webdav_backend:DAVS"
"""

from __future__ import annotations

import contextlib
import email.utils
import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

import httpx

from fusebackend.backends import FileInfo, FileUploadResponse, FileVerbs, Loaded, digest_of
from fusebackend.urls import Scheme, Url

logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of each request, in the server's log of a mount

TIMEOUT_S = 30.0
"""For one request to connect, and for each of its reads. The mount's own deadline for a route is shorter."""

PIECE_BYTES = 1 << 20
"""What one GET with Range asks for."""

ATTEMPTS = 5
"""How often an `edit` is made anew on a file that others change at the same time, before that is an error."""

KNOWN_VERSIONS = 10_000
"""Files of which the ETag of the bytes last seen is remembered, some 200 bytes each; the oldest go first."""

ERRNO_OF_STATUS = {
    400: errno.EINVAL,
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENOENT,
    409: errno.ENOENT,  # a parent is missing (RFC 4918, 9.7.1)
    405: errno.EISDIR,  # PUT to a directory, MKCOL of one that is there
    412: errno.ESTALE,  # somebody else was quicker; `_put` and `_rename` say EEXIST
    413: errno.EFBIG,
    414: errno.ENAMETOOLONG,
    423: errno.EBUSY,  # locked by another client
    507: errno.ENOSPC,
}
"""Any other status that is no success is EIO, with the server's words."""

PROPERTIES = b"""<?xml version="1.0" encoding="utf-8"?>
<propfind xmlns="DAV:"><prop><resourcetype/><getcontentlength/><getlastmodified/></prop></propfind>"""


class Version(NamedTuple):
    """What the server called a file whose bytes have this digest."""

    etag: str
    digest: bytes


class WebdavBackend(FileVerbs):
    """The files below one URL of a WebDAV server.

    Args:
        url: of a collection that exists, such as `https://user:password@files.example/home`.
        on_exists: what an agent's `write` does to an existing file, `"error"` or `"replace"`.
        ttl_s: seconds for which a mount believes a listing. The server tells nobody of changes.

    Raises:
        ValueError: `url` is no http or https URL.
    """

    exact_sizes = True  # getcontentlength counts bytes, so a mount need not download a file to know its size
    durable = True
    blocking = True

    def __init__(self, url: str, *, on_exists: Literal["error", "replace"] = "error", ttl_s: float = 1.0) -> None:
        super().__init__(on_exists=on_exists)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{parts.scheme}:' is no URL of a WebDAV server; write http://HOST/PATH")
        self.ttl_s = ttl_s
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        verify = parts.scheme == "https"  # to load the certificates takes 0.2 s
        self._http = httpx.Client(auth=login, timeout=TIMEOUT_S, verify=verify)
        self._versions: OrderedDict[str, Version] = OrderedDict()
        self._lock = threading.Lock()  # of `_versions`; no request is made while it is held

    def close(self) -> None:
        self._http.close()

    def _where(self) -> str:
        return self._base

    # -- asking ------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, content: bytes | None = None, **headers: str) -> httpx.Response:
        """One request. Names of headers have `_` for `-`. A status that is no success is the `OSError` of the table."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            answer = self._http.request(method, self._url(path), content=content, headers=sent)
        except httpx.TimeoutException:
            raise _oserror(errno.ETIMEDOUT) from None
        except httpx.HTTPError as error:
            raise OSError(errno.EIO, f"{self._base}: {error}") from None
        if answer.is_success and (answer.status_code != 207 or method == "PROPFIND"):
            return answer
        number = ERRNO_OF_STATUS.get(answer.status_code)
        if number is None:  # among them 207: a part of a directory could not be moved or deleted
            raise OSError(errno.EIO, f"{self._base}: {method} answered {answer.status_code} {answer.reason_phrase}")
        raise _oserror(number)

    def _url(self, path: str) -> str:
        try:
            return self._base + quote(path)
        except UnicodeEncodeError:  # a name that is not UTF-8
            raise _oserror(errno.EILSEQ) from None

    def _properties(self, path: str, depth: Literal["0", "1"]) -> list[FileInfo]:
        """A file or directory, and with depth 1 what is in it. ENOENT."""
        answer = self._ask("PROPFIND", path, PROPERTIES, Depth=depth, Content_Type="application/xml")
        root = unquote(urlsplit(self._base).path)
        found = []
        for response in ElementTree.fromstring(answer.content).iterfind("{DAV:}response"):
            where = unquote(urlsplit(response.findtext("{DAV:}href", "")).path).removeprefix(root)
            found.append(_info(where.rstrip("/"), response))
        return found

    def _is_dir(self, path: str) -> bool | None:
        """Is this a directory? None: nothing is there."""
        try:
            (info,) = self._properties(path, "0")
        except FileNotFoundError:
            return None
        return info["is_dir"]

    @contextlib.contextmanager
    def _on_the_way(self, path: str) -> Iterator[None]:
        """ENOENT becomes ENOTDIR where a file stands on the way to a path: a server answers 404 or 409 to both."""
        try:
            yield
        except FileNotFoundError:
            if any(self._is_dir(directory) is False for directory in _above(path)):
                raise _oserror(errno.ENOTDIR) from None
            raise

    def _get(self, path: str, **headers: str) -> httpx.Response:
        """GET of a file. EISDIR: what servers answer for a directory differs, a page in HTML included."""
        try:
            answer = self._ask("GET", path, **headers)
        except PermissionError:
            if self._is_dir(path):
                raise _oserror(errno.EISDIR) from None
            raise
        if "ETag" not in answer.headers and "Last-Modified" not in answer.headers and self._is_dir(path):
            raise _oserror(errno.EISDIR)
        return answer

    def _with_parents(self, path: str, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Send what needs the directory above a path; where that is missing, make it and send again."""
        try:
            return send()
        except FileNotFoundError:
            pass
        with self._on_the_way(path):
            for directory in _above(path):
                try:
                    self._ask("MKCOL", directory + "/")
                except IsADirectoryError:  # 405: it is there
                    continue
            return send()

    # -- versions ----------------------------------------------------------------------------------------------

    def _remember(self, path: str, answer: httpx.Response, data: bytes) -> None:
        """Note the ETag of these bytes. A weak one (`W/…`) is no condition for PUT (RFC 9110, 13.1.1)."""
        etag = answer.headers.get("ETag", "")
        with self._lock:
            self._versions.pop(path, None)
            if etag.startswith('"'):
                self._versions[path] = Version(etag, digest_of(data))
            if len(self._versions) > KNOWN_VERSIONS:
                self._versions.popitem(last=False)

    def _known(self, path: str) -> Version | None:
        with self._lock:
            return self._versions.get(path)

    def _swap(self, path: str, data: bytes, etag: str) -> None:
        """PUT over one version of a file. ESTALE: it has another one by now, or is gone."""
        self._remember(path, self._ask("PUT", path, data, If_Match=etag), data)

    def _version(self, path: str) -> tuple[bytes, str]:
        """A file and its ETag; `*`, which any version fulfils, from a server that gives no strong one."""
        data = self._load(path).data
        known = self._known(path)
        return data, known.etag if known is not None else "*"

    # -- primitives of FileVerbs -------------------------------------------------------------------------------

    def _list(self, path: str) -> list[FileInfo]:
        with self._on_the_way(path):
            found = self._properties(path, "1")
        itself = [info for info in found if info["path"].rstrip("/") == path.rstrip("/")]
        if any(not info["is_dir"] for info in itself):
            raise _oserror(errno.ENOTDIR)
        return [info for info in found if info not in itself]

    def _load(self, path: str) -> Loaded:
        with self._on_the_way(path):
            answer = self._get(path)
        self._remember(path, answer, answer.content)
        return Loaded(answer.content, modified_at=_time(answer.headers.get("Last-Modified")))

    def _pieces(self, path: str) -> Iterator[bytes]:
        offset, total, condition = 0, 1, {}
        while offset < total:
            answer = self._get(path, Range=f"bytes={offset}-{offset + PIECE_BYTES - 1}", **condition)
            yield answer.content
            if answer.status_code != 206:  # the whole: it is empty, or this server has no ranges
                return
            total = int(answer.headers["Content-Range"].rpartition("/")[2])
            offset += len(answer.content)
            etag = answer.headers.get("ETag", "")
            condition = {"If_Match": etag} if etag.startswith('"') else {}

    def _put(self, path: str, data: bytes, *, replace: bool) -> None:
        headers = {} if replace else {"If_None_Match": "*"}
        try:
            answer = self._with_parents(path, lambda: self._ask("PUT", path, data, **headers))
        except OSError as error:
            raise _oserror(errno.EEXIST) if error.errno == errno.ESTALE else error from None
        self._remember(path, answer, data)

    def _rewrite(self, path: str, change: Callable[[bytes], bytes]) -> None:
        for attempt in range(ATTEMPTS):
            data, etag = self._version(path)
            try:
                self._swap(path, change(data), etag)
                break
            except OSError as error:
                if error.errno != errno.ESTALE or attempt == ATTEMPTS - 1:
                    raise

    def _remove(self, path: str) -> None:
        with self._on_the_way(path):
            self._ask("DELETE", path)

    def _rename(self, old: str, new: str) -> None:
        with self._on_the_way(old):
            if self._is_dir(old) is None:  # a 404 to MOVE may mean either end
                raise _oserror(errno.ENOENT)
        try:
            self._with_parents(new, lambda: self._ask("MOVE", old, Destination=self._url(new), Overwrite="F"))
        except OSError as error:
            raise _oserror(errno.EEXIST) if error.errno == errno.ESTALE else error from None

    # -- what a mount asks besides -----------------------------------------------------------------------------

    def upload_if(self, path: str, content: bytes, digest: bytes | None) -> FileUploadResponse:
        """Store a file if the bytes that are there have this digest; None: if nothing is there.

        The error is `conflict` if not. Anything else that is wrong is an `OSError`, which `close` and `fsync` hand on.
        """
        try:
            if digest is None:
                self._put(path, content, replace=False)
            elif not self._replace(path, content, digest):
                return FileUploadResponse(path, error="conflict")
        except FileExistsError:
            return FileUploadResponse(path, error="conflict")
        return FileUploadResponse(path)

    def _replace(self, path: str, data: bytes, digest: bytes) -> bool:
        """PUT over bytes of this digest: one request where their ETag is known. False: other bytes are there."""
        known = self._known(path)
        if known is not None and known.digest == digest and self._swapped(path, data, known.etag):
            return True
        try:  # the ETag may be another one for the same bytes
            current, etag = self._version(path)
        except FileNotFoundError:
            return False
        return digest_of(current) == digest and self._swapped(path, data, etag)

    def _swapped(self, path: str, data: bytes, etag: str) -> bool:
        try:
            self._swap(path, data, etag)
        except OSError as error:
            if error.errno not in (errno.ESTALE, errno.ENOENT):
                raise
            return False
        return True


def _oserror(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _above(path: str) -> list[str]:
    """The directories on the way to a path, the root not among them, from above."""
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]


def _info(path: str, response: ElementTree.Element) -> FileInfo:
    """One `response` of a PROPFIND as an entry of a listing."""
    is_dir = response.find(".//{DAV:}resourcetype/{DAV:}collection") is not None
    info = FileInfo(path=path + "/" if is_dir else path, is_dir=is_dir)
    size = response.findtext(".//{DAV:}getcontentlength")
    if size and not is_dir:
        info["size"] = int(size)
    modified_at = _time(response.findtext(".//{DAV:}getlastmodified"))
    if modified_at:
        info["modified_at"] = modified_at
    return info


def _time(http_date: str | None) -> str | None:
    """A date of HTTP as ISO 8601 in UTC."""
    return email.utils.parsedate_to_datetime(http_date).isoformat() if http_date else None


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
