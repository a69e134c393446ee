"""`fusebackend://`: the files of a mount, or of what is served without one, for everything that reads by fsspec.

    pandas.read_parquet("fusebackend:///data/a.parquet", storage_options={"mount": "/mnt/agent"})
    fsspec.filesystem("fusebackend", config="agent.toml").find("/notes")

Every operation is a verb of the control socket (`control/client/client.py`). A file is read in ranges; if it changes
while it is open, the next read is ESTALE, so that none mixes two versions. What is written is collected in a temporary
file of this machine and sent when it is closed: until then, and after an exception in its `with` block, the file is as
it was. Bytes of `ab` are appended to what is there by then.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from glob import has_magic
from types import TracebackType
from typing import IO, Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import stringify_path

from fusebackend.base.errors import INVALID_PATH, errno_of, oserror, words_of
from fusebackend.control.client.client import Client, connect
from fusebackend.protocol import Actor, StatResult

BLOCK_BYTES = 4 << 20
"""Asked for by one call, and what fsspec's caches read ahead."""

MEMORY_BYTES = 8 << 20
"""What is written stays in memory up to this size, and goes to a temporary file beyond."""


class FusebackendFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """See the module's docstring.

    Paths are those of the agents: absolute, from the root of the mount.

    Args:
        mount: a path in the mount; FUSEBACKEND_MOUNT if neither this nor the next two are given.
        socket: of a server, in its place.
        config: the configuration of what `fusebackend serve` serves, in its place.
        view: see the files through this view; through none if it is empty.
        agent, thread, call: who makes the changes, for `log` and `undo`.

    Raises, in every method:
        MountError: there is no such mount, or its server is gone.
        ServerLost: the server was gone before it answered.
        OSError: that of the file; EINVAL for a malformed path.
    """

    protocol = "fusebackend"
    root_marker = "/"
    blocksize = BLOCK_BYTES

    def __init__(
        self,
        mount: str | None = None,
        socket: str | None = None,
        config: str | None = None,
        view: str | None = None,
        agent: str = "",
        thread: str = "",
        call: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        given = [place for place in (mount, socket, config) if place is not None]
        if len(given) > 1:
            raise ValueError(f"give one of mount, socket and config, not {' and '.join(map(repr, given))}")
        self._given = given[0] if given else None
        self._view = view
        self._actor = Actor(agent, thread, call)
        self._clients: dict[str | None, Client] = {}

    @property
    def client(self) -> Client:
        """The client that makes the verbs."""
        # fsspec keeps one instance for the process; the environment may name another mount by now.
        place = self._given or os.environ.get("FUSEBACKEND_MOUNT")
        client = self._clients.get(place)
        if client is None:
            client = self._clients[place] = connect(place, actor=self._actor, view=self._view)
        return client

    def close(self) -> None:
        """Close the connections that are kept. The file system can still be used."""
        for client in list(self._clients.values()):
            client.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = stringify_path(path).removeprefix(f"{cls.protocol}:")
        return "/" + text.strip("/")

    # -- looking -----------------------------------------------------------------------------------------------

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return `name`, `type`, `size`, `mtime` (seconds), `mtime_ns`, `ctime_ns`, `mode` and more. Links are
        followed."""
        path = self._strip_protocol(path)
        return self._info(path, _found(path, self.client.stat(path)))

    def _info(self, path: str, found: StatResult, *, listed: bool = False) -> dict[str, Any]:
        """What `found` says, and where that is a link, what it leads to. In a listing, a link to a directory is none:
        else a walk might never end."""
        target = found.target
        if target is not None:
            found = self.client.stat(path, follow=True)
        kind = found.type if found.type in ("file", "directory") else "other"  # such as a FIFO
        return {
            "name": path,
            "type": "other" if listed and target is not None and kind == "directory" else kind,
            "size": found.size or 0,
            "mtime": None if found.mtime_ns is None else found.mtime_ns / 1e9,
            "mtime_ns": found.mtime_ns,
            "ctime_ns": found.ctime_ns,
            "mode": found.mode,
            "nlink": found.nlink,
            "uid": found.uid,
            "gid": found.gid,
            "islink": target is not None,
            **({} if target is None else {"destination": target}),
        }

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        listed = self.client.stats(path)
        if listed.error is not None:
            info = self.info(path)
            if info["type"] == "directory":
                raise OSError(errno.EIO, listed.error, path)
            return [info] if detail else [path]
        found = [each for each in listed.entries or () if each.error is None and each.path is not None]
        infos = [self._info(self._strip_protocol(each.path), each, listed=True) for each in found]
        return infos if detail else [info["name"] for info in infos]

    def islink(self, path: str) -> bool:
        return self.client.stat(self._strip_protocol(path)).target is not None

    def modified(self, path: str) -> datetime:
        return self._time(path, "mtime_ns")

    def created(self, path: str) -> datetime:
        """The time of the last change of bytes or attributes, as of fsspec's local files: no time of birth is kept."""
        return self._time(path, "ctime_ns")

    def _time(self, path: str, name: str) -> datetime:
        time_ns = self.info(path)[name]
        if time_ns is None:
            raise OSError(errno.ENODATA, "a directory that exists only for the routes below it has no times", path)
        return datetime.fromtimestamp(time_ns / 1e9, UTC)

    # -- bytes -------------------------------------------------------------------------------------------------

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        if mode == "rb":
            return _Reading(self, path, mode, block_size or BLOCK_BYTES, cache_options=cache_options, **options)
        if mode not in ("wb", "ab", "xb"):
            raise ValueError(f"mode '{mode}' is none of rb, wb, ab and xb")
        found = self.client.stat(path, follow=True)
        if found.type == "directory":
            raise oserror(errno.EISDIR, path)
        if mode == "xb" and self.lexists(path):
            raise oserror(errno.EEXIST, path)
        return _Writing(self, path, mode, autocommit, (found.size or 0) if mode == "ab" else 0)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "b" in mode or mode in ("r", "rt"):
            return super().open(path, mode, **options)
        words = {name: options.pop(name) for name in ("encoding", "errors", "newline") if name in options}
        return _WritingText(self.open(path, f"{mode.replace('t', '')}b", **options), **words)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        if start is not None or end is not None:
            return super().cat_file(path, start, end, **options)  # type: ignore[no-any-return]
        path = self._strip_protocol(path)
        content = io.BytesIO()
        self._fetch(path, content)
        return content.getvalue()

    def _fetch(self, path: str, file: IO[bytes]) -> None:
        """Copy a file as it is at one moment into an open one."""

        def take(_: int, piece: bytes) -> None:
            file.write(piece)

        answer = self.client.fetch([path], take)[0]
        _require(path, answer.error)

    def _send(self, path: str, file: IO[bytes], *, if_absent: bool = False) -> None:
        file.seek(0)
        error = self.client.send(path, iter(lambda: file.read(BLOCK_BYTES), b""), if_absent=if_absent).error
        _require(path, os.strerror(errno.EEXIST) if error == "changed" else error)

    def lexists(self, path: str, **_: Any) -> bool:
        return self.client.stat(self._strip_protocol(path)).error is None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def put_file(
        self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **options: Any
    ) -> None:
        """Send a file of this machine, in one call."""
        if os.path.isdir(lpath):
            super().put_file(lpath, rpath, callback=callback, mode=mode, **options)
            return
        with open(lpath, "rb") as file:
            callback.set_size(os.fstat(file.fileno()).st_size)
            self._send(self._strip_protocol(rpath), file, if_absent=mode == "create")
            callback.absolute_update(file.tell())

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        with tempfile.SpooledTemporaryFile(MEMORY_BYTES, prefix="fusebackend-") as file:
            self._fetch(source, file)
            self._send(target, file)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        """Make an empty file, or empty one. With `truncate=False` an existing file keeps its bytes and time."""
        with contextlib.suppress(*(() if truncate else (FileExistsError,))):
            self.pipe_file(path, b"", mode="overwrite" if truncate else "create")

    # -- names -------------------------------------------------------------------------------------------------

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        with _checking(path):
            self.client.make_directory(path, parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        with _checking(path):
            self.client.remove_directory(path)

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        if _found(path, self.client.stat(path)).type == "directory":
            self.rmdir(path)  # `rm` gives both
        else:
            self._delete(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files, and with `recursive` directories with all below, each in one call."""
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for each in self.expand_path(path):
            if not recursive and _found(each, self.client.stat(each)).type == "directory":
                raise IsADirectoryError(errno.EISDIR, "Is a directory; give recursive=True", each)
            self._delete(each)

    def expand_path(self, path: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> list[str]:
        """As fsspec's, for `rm`, `get`, `copy` and `cat`; but a name that is there is itself, also where it is a glob
        that other names match: `rm("/file[1].txt")` is not about `/file1.txt`."""
        given = [self._strip_protocol(each) for each in ([path] if isinstance(path, str | os.PathLike) else path)]
        named = {each for each in given if has_magic(each) and self.lexists(each)}
        left = [each for each in given if each not in named]
        found = set(super().expand_path(left, recursive, maxdepth, **options)) if left else set()
        if recursive:
            found.update(*(self.find(each, maxdepth=maxdepth, withdirs=True) for each in named))
        return sorted(found | named)

    def _delete(self, path: str) -> None:
        error = self.client.delete(path).error
        if error is not None:
            _found(path, self.client.stat(path))  # ENOENT
            _require(path, error)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Rename in one call, where nothing is at the new name; else copy and delete."""
        if isinstance(path1, str) and isinstance(path2, str) and maxdepth is None and not path2.endswith("/"):
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if self.lexists(source) and not self.lexists(target):
                _require(source, self.client.move(source, target).error)
                return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)


class _Reading(AbstractBufferedFile):  # type: ignore[misc]
    """An open file: fsspec's caches, over ranges of one version."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        known = tuple(self.details[name] for name in ("size", "mtime_ns", "ctime_ns"))
        content = bytearray()
        while start + len(content) < end:
            offset = start + len(content)
            with _checking(self.path):
                found = self.fs.client.read_range(self.path, offset, min(end - offset, BLOCK_BYTES))
            if (found.size, found.mtime_ns, found.ctime_ns) != known:
                raise OSError(errno.ESTALE, "The file has changed since it was opened; open it again", self.path)
            if not found.content:
                break
            content += found.content
        return bytes(content)


class _Writing(io.IOBase):
    """A file that is being written: a temporary one, which is sent by `commit`. What is written begins at `start`."""

    def __init__(self, fs: FusebackendFileSystem, path: str, mode: str, autocommit: bool, start: int) -> None:
        super().__init__()
        self.fs, self.path, self.mode, self.autocommit = fs, path, mode, autocommit
        self._start = start
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(MEMORY_BYTES, prefix="fusebackend-")  # noqa: SIM115
        self._is_done = False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.mode != "ab"

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return len(data) if self._is_done else self._file.write(data)

    def tell(self) -> int:
        return self._start + self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if not self.seekable():
            raise io.UnsupportedOperation("a file that is appended to has one position, its end")
        return self._file.seek(offset, whence)

    def close(self) -> None:
        """Send the file, if that is not left to a transaction."""
        if self.closed:
            return
        try:
            if self.autocommit:
                self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        """Store what was written."""
        if self._is_done:
            return
        self._is_done = True
        with self._file as file:
            if self.mode == "ab":
                file.seek(0)
                with _checking(self.path):
                    self.fs.client.append(self.path, iter(lambda: file.read(BLOCK_BYTES), b""))
            else:
                self.fs._send(self.path, file, if_absent=self.mode == "xb")

    def discard(self) -> None:
        """Drop what was written, and what is written until it is closed."""
        if not self._is_done:
            self._is_done = True
            self._file.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.discard()
        self.close()


class _WritingText(io.TextIOWrapper):
    """A text that is being written, by a `_Writing` or what compresses for it; also nothing after an exception."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and isinstance(self.buffer, _Writing):
            self.buffer.discard()
        self.close()


@contextlib.contextmanager
def _checking(path: str) -> Iterator[None]:
    """Raise EINVAL for a malformed path, of the verbs that have no record."""
    try:
        yield
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), path) from None


def _found(path: str, answer: StatResult) -> StatResult:
    if answer.code is not None:
        said = answer.error if answer.code == INVALID_PATH else words_of(answer.code)
        raise OSError(errno_of(answer.code), said, path)
    _require(path, answer.error)  # the server could not be asked
    return answer


def _require(path: str, error: str | None) -> None:
    """Raise the error of a verb's record."""
    if error is not None:
        raise OSError(errno_of(error), words_of(error), path)
