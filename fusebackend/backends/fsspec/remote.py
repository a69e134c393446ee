"""`FsspecRemote`: a directory of an fsspec file system as a `Remote`.

A version is made of what `info` has: an ETag or a checksum, the time of the last change, the size, the number of the
file. Before a file is stored or moved its version is compared; fsspec has no conditional request, so what somebody else
stores between the comparison and the request is overwritten. Where a rename replaces a file, one is stored under a
temporary name first, so that no reader sees a part of it. (`autocommit=False` would use `/tmp` of the server.)
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Literal
from urllib.parse import quote, unquote

from fsspec import AbstractFileSystem
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.core import OpenFile
from fsspec.dircache import DirCache
from fsspec.implementations.local import LocalFileSystem

from fusebackend.backends.fsspec import opening
from fusebackend.backends.fsspec.reading import PIECE_BYTES, SMB_PORT, Briefly, FsAccess, reader_of
from fusebackend.base import paths
from fusebackend.base.at_path import Followed
from fusebackend.base.errors import oserror
from fusebackend.protocol import DEFAULT_TTL_S
from fusebackend.protocol.remote import Abilities, Bytes, Contents, Etag, Head, Info, Reader, Remote, Stamp
from fusebackend.remote.backend import RemoteBackend
from fusebackend.remote.parallel import WIDTH, each
from fusebackend.remote.ranges import CACHE_BYTES, BlockCache
from fusebackend.remote.volume import RemoteVolume

TEMPORARY = ".fusebackend-"
"""How the names of files begin that are being stored. No listing shows them."""

TIMES = ("mtime", "last_modified", "LastModified", "Last-Modified", "modified", "updated", "date_time", "modify")
"""Names that file systems give to the time of the last change."""

VERSIONS = (
    "ETag",
    "etag",
    "e_tag",
    "md5",
    "content_md5",
    "Content-MD5",
    "Digest",
    "checksum",
    "sha",
    "oid",
    "CRC",
    "ino",
    "unique",
    "generation",
)
"""Names of what is another one when the bytes are others; `ino` and `unique` (FTP), when another file took the
place."""


class FsspecRemote(Remote):
    """See the module's docstring.

    Args:
        fs: an `fsspec.AbstractFileSystem`. Its cache of listings is turned off.
        root: the directory in it that is the root, as the file system names it.
        read_only: nothing can be changed.
    """

    # What is in memory, or in a file of this machine, is written on the mount's own thread: that takes less than the
    # hop to another thread. `FsAccess` says `will_wait`.
    at_once = frozenset({"write"})
    hopeless = frozenset({errno.EROFS, errno.ENOTSUP})

    def __init__(self, fs: Any, root: str, *, read_only: bool = False) -> None:
        self.fs = _uncached(fs)
        self._archive = _archive(fs)
        self._asking = FsAccess(fs)
        self.byte_cache = BlockCache(CACHE_BYTES, self._asking.pace)
        self._root = root.rstrip("/")
        # The paths of sftp begin with a slash though its root marker is empty; an archive's names have none.
        self._is_absolute = root.startswith("/") or bool(fs.root_marker)
        self._renames = not _RENAMED.isdisjoint(protocols(fs))
        protocol = protocols(fs)[0]
        if self._asking.is_smb and fs.share_access is None:
            fs.share_access = "rwd"  # else each open file is locked, for other readers too
        self._is_web = protocol in _WEB
        self.name = f"fsspec {protocol}"
        self.abilities = Abilities(
            ranges=True,
            exact_sizes=True,
            keeps_directories=type(fs).mkdir is not AbstractFileSystem.mkdir and protocol not in _BUCKETS,
            durable=protocol != "memory",
            read_only=read_only,
            conditional=False,
        )

    # -- names -------------------------------------------------------------------------------------------------

    def contents(self, directory: str) -> Contents:
        path = self._path(directory)
        with self._asking.of(path):
            self._look(path)
            listed = self.fs.ls(path, detail=True)
        infos = {}
        for info in listed:
            above, _, name = info["name"].rstrip("/").rpartition("/")
            if self._is_web:
                if above != path or "?" in name or "#" in name:
                    continue  # a link on the page that leads elsewhere, or sorts it
                name = unquote(name)
            if info["name"].strip("/") == path.strip("/"):
                if info["type"] != "directory":
                    raise oserror(errno.ENOTDIR, path)
                continue  # some list the directory itself
            if info["type"] in ("file", "directory") and not name.startswith(TEMPORARY):
                infos[paths.to_name(name)] = self._listed(name, info)
        if not infos and directory and not self.has(directory):
            raise oserror(errno.ENOENT, path)
        return Contents(infos)

    def _listed(self, name: str, info: dict[str, Any]) -> Info:
        is_dir = info["type"] == "directory"
        size = info.get("size")
        if is_dir or size is None:  # a server that does not say; `heads` asks
            return Info(name, is_dir, mtime_ns=_time_ns(info), version=_version(info) if is_dir else None)
        version = _version(info)
        return Info(name, is_dir, size, _time_ns(info), version, version)

    def has(self, key: str) -> bool:
        info = self._info(key)
        return info is not None and (info["type"] == "directory") == key.endswith("/") if key else True

    def make_directory(self, directory: str, stamp: Stamp, *, replace: bool) -> Etag | None:
        path = self._path(directory)
        if self._info(directory) is not None:
            if replace:
                return None
            raise oserror(errno.EEXIST, path)
        with self._asking.of(path):
            self.fs.mkdir(path, create_parents=False)
        return None

    def delete(self, key: str) -> None:
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError), self._asking.of(path):
            if key.endswith("/"):
                self.fs.rmdir(path)
            else:
                self.fs.rm_file(path)

    def rename(
        self, old: str, new: str, etag: Etag | None, replaced: tuple[Etag | None] | None, copied: Callable[[], None]
    ) -> Sequence[str]:
        source, target = self._path(old), self._path(new)
        if not old.endswith("/"):
            self._require(old, etag)
        there = self._info(new) if replaced is None else None
        if there is not None and not (there["type"] == "directory" and old.endswith("/")):
            raise oserror(errno.EEXIST, target)
        if there is not None:
            self.delete(new)  # it is empty, as was seen before; `mv` would put the other one into it
        if replaced is not None:
            self._require(new, replaced[0])
        with self._asking.of(source):
            self._move(source, target, is_dir=old.endswith("/"))
        copied()
        return ()

    def _move(self, source: str, target: str, *, is_dir: bool = False) -> None:
        """Rename, where the file system can, in place of what is at the target."""
        if self._asking.is_smb:
            import smbclient

            source, target = (f"\\\\{self.fs.host}{path}".replace("/", "\\") for path in (source, target))
            smbclient.replace(source, target, port=self.fs.port or SMB_PORT)  # `mv` replaces nothing
        elif self._renames:
            self.fs.mv(source, target)
        else:
            self.fs.mv(source, target, recursive=is_dir)  # file by file

    # -- files -------------------------------------------------------------------------------------------------

    def head(self, key: str, known: Etag | None = None, fetch_bytes: int = 0) -> Head | None:
        info = self._info(key)
        return None if info is None or info["type"] == "directory" else self._head(key, info)

    def _head(self, key: str, info: dict[str, Any]) -> Head:
        version = _version(info)
        size = info.get("size")
        if size is None:
            size = self._count(self._path(key))
        return Head(size, version, version, _time_ns(info))

    def _count(self, path: str) -> int:
        """The size of a file that the file system does not know."""
        with self._asking.of(path), self.fs.open(path, "rb", block_size=0) as file:
            return sum(map(len, iter(lambda: file.read(PIECE_BYTES), b"")))

    def heads(self, wanted: Iterable[tuple[str, int]]) -> Sequence[Head | OSError | None]:
        return each(self.head_or_error, [key for key, _ in wanted], WIDTH if self._asking.at_once else 1)

    def reader(self, key: str, etag: Etag | None, size: int) -> Reader:
        return self._reader(key, self._require(key, etag), size)

    def _reader(self, key: str, info: dict[str, Any], size: int) -> Reader:
        path, version = self._path(key), _version(info)

        def opened() -> Any:
            file = self._opened(path, info)
            return Briefly(file, lambda: self._opened(path, info)) if self._asking.is_smb else file

        def opened_again() -> Any:
            self._require(key, version)
            return opened()

        with self._asking.of(path):
            return reader_of(path, opened(), size, self._asking, opened_again, self.byte_cache)

    def _opened(self, path: str, info: dict[str, Any]) -> Any:
        options = {}
        if self._is_web and str(info.get("ETag")).startswith('"'):  # If-Match never matches a weak one
            headers = self.fs.kwargs.get("headers", {})
            options = {"size": info["size"], "headers": {**headers, "If-Match": info["ETag"]}}
        # What fills a buffer reads more of SMB than a range that is smaller.
        return self.fs.open(path, "rb", block_size=0 if self._asking.is_smb else PIECE_BYTES, **options)

    def load(self, key: str, etag: Etag | None) -> Iterator[bytes]:
        info = self._require(key, etag)
        size = self._head(key, info).size
        with closing(self._reader(key, info, size)) as reader:
            for offset in range(0, size, PIECE_BYTES):
                yield reader.read(offset, PIECE_BYTES)

    def put(self, key: str, data: Bytes, stamp: Stamp, *, over: Etag | None, create: bool) -> Etag | None:
        path = self._path(key)
        if create and self._info(key) is not None:
            raise oserror(errno.ESTALE, path)
        if not create and over is not None:
            self._require(key, over)
        with self._asking.of(path):
            self._store(path, data)
        head = self.head(key)
        return None if head is None else head.etag

    def _store(self, path: str, data: Bytes) -> None:
        aside = f"{path.rpartition('/')[0]}/{TEMPORARY}{secrets.token_hex(8)}" if self._renames else path
        with self.fs.open(aside, "wb") as file:
            if hasattr(file, "set_pipelined"):  # paramiko waits for each 32 KiB else
                file.set_pipelined(True)
            for piece in data.pieces():
                file.write(piece)
        if self._renames:
            self._move(aside, path)

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> tuple[float, str] | None:
        return self._archive.trouble if self._archive is not None else None

    def expire(self) -> None:
        self.fs.invalidate_cache()

    def close(self) -> None:
        """Read ahead no more. The connections are fsspec's."""
        self.byte_cache.close()

    # -- of all ------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        if self._is_web:
            return f"{self._root}/{quote(key)}".rstrip("/")
        path = f"{self._root}/{key}".rstrip("/")
        if self._is_absolute:
            return path or "/"
        return path if self._root else path.lstrip("/")

    def _info(self, key: str) -> dict[str, Any] | None:
        """What the file system says of a file or directory now; None where nothing is."""
        path = self._path(key)
        is_page = self._is_web and (not key or key.endswith("/"))  # all that HTTP knows of directories
        try:
            with self._asking.of(path):
                self._look(path)
                info: dict[str, Any] = self.fs.info(f"{path}/" if is_page else path)
                return {**info, "type": "directory"} if is_page else info
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _look(self, path: str) -> None:
        """The next request is answered by what is there now."""
        if self._archive is not None:
            self.fs = self._archive.get()
        self.fs.invalidate_cache(path)

    def _require(self, key: str, etag: Etag | None) -> dict[str, Any]:
        """What is there now. ENOENT if a file is not there, ESTALE if it is another version."""
        info = self._info(key)
        if info is None or info["type"] == "directory":
            raise oserror(errno.ENOENT, self._path(key))
        if etag is not None and _version(info) != etag:
            raise oserror(errno.ESTALE, self._path(key))
        return info


_RENAMED = frozenset({"file", "local", "ftp", "sftp", "ssh", "smb"})
"""Protocols whose rename replaces a file at once."""

_WEB = frozenset({"http", "https"})
"""Protocols of which a directory is a page with links, and a path a URL."""

_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "hf"})
"""Protocols whose `mkdir` makes a bucket, or nothing."""


def protocols(fs: Any) -> tuple[str, ...]:
    """The names of a file system's protocol."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _uncached(fs: Any) -> Any:
    fs.dircache = DirCache(use_listings_cache=False)  # as an option, some hand it to the library behind them
    return fs


def _archive(fs: Any) -> Followed[Any] | None:
    """An archive in a file of this machine, which is opened anew when that is replaced; None for anything else. What is
    open in the one before can still be read."""
    of = getattr(fs, "of", None)
    if not isinstance(fs, AbstractArchiveFileSystem) or not isinstance(of, OpenFile):
        return None
    if not isinstance(of.fs, LocalFileSystem):
        return None
    given = [fs]

    def opened() -> Any:
        if given:
            return given.pop()
        return _uncached(type(fs)(*fs.storage_args, **fs.storage_options, skip_instance_cache=True))

    archive: Followed[Any] = Followed(of.path, opened, lambda _: None)
    found = os.fstat(fs.fo.fileno())
    if (found.st_dev, found.st_ino) != archive.key:
        archive.reopen()  # it was replaced since the file system was made
    return archive


def _version(info: dict[str, Any]) -> str:
    found = [str(info[name]) for name in (*VERSIONS, *TIMES, "size") if info.get(name) is not None]
    return hashlib.blake2b("\0".join(found).encode(), digest_size=12).hexdigest()


def _time_ns(info: dict[str, Any]) -> int | None:
    """The time of the last change, in nanoseconds since 1970."""
    for name in TIMES:
        value = info.get(name)
        if isinstance(value, (int, float)):
            return int(value * 1_000_000_000)
        if isinstance(value, tuple) and len(value) >= 6:  # of a zip file
            value = datetime(*value[:6]).replace(tzinfo=UTC)
        if isinstance(value, str):
            value = _read_time(value)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1_000_000) * 1000
    return None


def _read_time(text: str) -> datetime | None:
    """ISO 8601, the digits that FTP servers send (RFC 3659, 2.3), or the words of HTTP (RFC 9110, 5.6.7)."""
    for read in (
        datetime.fromisoformat,
        parsedate_to_datetime,
        lambda digits: datetime.strptime(digits[:14], "%Y%m%d%H%M%S"),
    ):
        try:
            found = read(text)
        except ValueError:
            continue
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return None


# -- backend ---------------------------------------------------------------------------------------------------------
#
# `FsspecBackend`: the agent face of a file system of fsspec.


class FsspecBackend(RemoteBackend):
    """A directory of a file system of fsspec. `remote.py` says what is kept and compared.

    Args:
        fs: an `fsspec.AbstractFileSystem` of its own (`skip_instance_cache=True`): its cache of listings is turned off.
        root: the directory in it that is the root.
        ttl: seconds for which a listing is believed.
        read_only: nothing can be changed.
        on_exists: see `VolumeBackend`.
        clock: seconds that only grow, by which listings age.
    """

    schemes: ClassVar = opening.SCHEMES

    def __init__(
        self,
        fs: Any,
        root: str = "",
        *,
        ttl: float = DEFAULT_TTL_S,
        read_only: bool = False,
        on_exists: Literal["error", "replace"] = "error",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        remote = FsspecRemote(fs, root, read_only=read_only)
        volume = RemoteVolume(remote, ttl_s=ttl, clock=clock)
        super().__init__(volume, on_exists=on_exists)
        self._shown = f"{remote.name} {root}"
