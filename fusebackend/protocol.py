"""Both faces of a backend, and the records that cross them. No behaviour lives here.

The agent face is `BackendProtocol`: a path in, a result record out, and never an exception for a bad path.
The kernel face is `Volume`: nodes and names in, values out, `OSError` with its errno for what can't be done.
Each face is derived from the other once: `backends/volume.py` gives every volume an agent face, and
`backends/foreign.py` gives every agent face a volume.

Names follow deepagents 0.7; the names of the seeds (`ls_info`, `grep_raw`, `glob_info`) are working aliases,
in both directions: a backend that defines only the old name answers to the new one as well.
"""

from __future__ import annotations

import abc
import functools
import stat as stat_module
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# --------------------------------------------------------------------------------------------------------------
# Records of the agent face
# --------------------------------------------------------------------------------------------------------------

ErrorCode: TypeAlias = Literal["file_not_found", "permission_denied", "is_directory", "invalid_path"]
"""The four codes every backend knows; a backend may answer with another string of its own."""

READ_LIMIT_LINES = 2000
"""Lines that `read` returns when the caller names no limit (seeds and deepagents agree)."""


class FileInfo(TypedDict):
    """One file or directory in a listing. The path of a directory ends with `/`."""

    path: str
    is_dir: NotRequired[bool]
    size: NotRequired[int]  # bytes
    modified_at: NotRequired[str]  # ISO 8601, UTC, with offset


class GrepMatch(TypedDict):
    """One matching line. `line` counts from 1; `text` is the line without its newline."""

    path: str
    line: int
    text: str


class FileData(TypedDict):
    """A file's content as it is kept in state and stores (deepagents "v2").

    `content` is text when `encoding` is `utf-8`, and the base64 of the bytes when it is `base64`. Version 1 kept a
    list of lines and no encoding; `text.decode_file_data` reads both.
    """

    content: str
    encoding: NotRequired[str]
    created_at: NotRequired[str]
    modified_at: NotRequired[str]


@dataclass
class LsResult:
    """What `ls` found, sorted by path; or why it could not look."""

    error: str | None = None
    entries: list[FileInfo] | None = None


@dataclass
class ReadResult:
    """A window of a file's lines.

    `start_line` and `end_line` count from 1 and are absent where no window applies (binary files, empty files,
    errors). `next_offset` is the `offset` that continues, or None when the window reaches the end of the file.

    `str(result)` is the numbered text that the seeds' `read` returned, and `"x" in result` searches that text.
    """

    error: str | None = None
    file_data: FileData | None = None
    total_lines: int | None = None
    start_line: int | None = None
    end_line: int | None = None
    next_offset: int | None = None
    no_lines_requested: bool = False

    def __str__(self) -> str:
        from fusebackend.text import number_read_result

        return number_read_result(self)

    def __contains__(self, needle: str) -> bool:
        return needle in str(self)


@dataclass
class WriteResult:
    """The outcome of `write`. `files_update` is the state update of a state-backed backend, None elsewhere."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None


@dataclass
class EditResult:
    """The outcome of `edit`; `occurrences` is how many replacements were made."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None
    occurrences: int | None = None


@dataclass
class DeleteResult:
    """The outcome of `delete`. In `files_update` a deleted path maps to None."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None


@dataclass
class MoveResult:
    """The outcome of `move`; `path` is where the file or directory is now."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None


@dataclass
class GrepResult:
    """Matches sorted by path and line. `truncated` is True when a limit cut them short."""

    error: str | None = None
    matches: list[GrepMatch] | None = None
    truncated: bool = False


@dataclass
class GlobResult:
    """Matching regular files sorted by path. `truncation_reason` is `budget`, `unreadable` or `transport`."""

    error: str | None = None
    matches: list[FileInfo] | None = None
    truncated: bool = False
    truncation_reason: str | None = None


@dataclass
class FileUploadResponse:
    """One file of an `upload_files` batch. `error` is an `ErrorCode` or a string of the backend's own."""

    path: str
    error: str | None = None
    files_update: dict[str, Any] | None = None


@dataclass
class FileDownloadResponse:
    """One file of a `download_files` batch: its bytes, or an error."""

    path: str
    content: bytes | None = None
    error: str | None = None


@dataclass
class ExecuteResponse:
    """What a shell command printed. `exit_code` is 124 after a time-out, None when it is not known."""

    output: str
    exit_code: int | None = None
    truncated: bool = False


# --------------------------------------------------------------------------------------------------------------
# The agent face
# --------------------------------------------------------------------------------------------------------------


def _overridden(backend: object, name: str) -> bool:
    """Does the backend's class define `name` itself, rather than inherit the default?"""
    return getattr(type(backend), name, None) is not getattr(BackendProtocol, name)


class BackendProtocol(abc.ABC):
    """An agent's files. Paths are absolute strings that start with `/`; results are records, never exceptions.

    There are no abstract methods: a backend implements what it can, and the rest raises `NotImplementedError`,
    which callers such as `CompositeBackend` turn into an error record. `ls`, `grep` and `glob` fall back on the
    seeds' `ls_info`, `grep_raw` and `glob_info` where only those are defined, and the other way round.
    """

    def ls(self, path: str) -> LsResult:
        """List the direct children of the directory `path`, sorted by path; directories end with `/`."""
        if _overridden(self, "ls_info"):
            return LsResult(entries=self.ls_info(path))
        raise NotImplementedError(f"{type(self).__name__} has no ls")

    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        """Read up to `limit` lines from line `offset` (counted from 0; negative means 0)."""
        raise NotImplementedError(f"{type(self).__name__} has no read")

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create a file and its missing parents. An existing file is an error unless `on_exists="replace"`."""
        raise NotImplementedError(f"{type(self).__name__} has no write")

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace an exact string, which must occur once unless `replace_all`."""
        raise NotImplementedError(f"{type(self).__name__} has no edit")

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that contain the literal `pattern` in the text files below `path`.

        Args:
            pattern: a literal substring of one line, not a regular expression.
            path: a directory or one file; None means `/`.
            glob: only files whose path (relative to `path`) matches; rules in `globs.py`.
            max_count: stop after this many matches in all and say `truncated`.
        """
        if _overridden(self, "grep_raw"):
            raw = self.grep_raw(pattern, path, glob)
            if isinstance(raw, str):
                return GrepResult(error=raw)
            matches = sorted(raw, key=lambda match: (match["path"], match["line"]))
            cut = max_count is not None and len(matches) > max_count
            return GrepResult(matches=matches[:max_count], truncated=cut)
        raise NotImplementedError(f"{type(self).__name__} has no grep")

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find regular files below `path` (None means `/`) by a glob pattern; rules in `globs.py`."""
        if _overridden(self, "glob_info"):
            return GlobResult(matches=self.glob_info(pattern, path or "/"))
        raise NotImplementedError(f"{type(self).__name__} has no glob")

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with all below it."""
        raise NotImplementedError(f"{type(self).__name__} has no delete")

    def move(self, source: str, destination: str) -> MoveResult:
        """Rename a file or directory, atomically; an existing destination is an error."""
        raise NotImplementedError(f"{type(self).__name__} has no move")

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Store bytes at paths, replacing what is there. One response per item, in order; items fail singly."""
        raise NotImplementedError(f"{type(self).__name__} has no upload_files")

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch the bytes of files. One response per item, in order; items fail singly."""
        raise NotImplementedError(f"{type(self).__name__} has no download_files")

    # The seeds' names.

    def ls_info(self, path: str) -> list[FileInfo]:
        """Seed name of `ls`: the entries alone, empty after an error."""
        if not _overridden(self, "ls"):
            raise NotImplementedError(f"{type(self).__name__} has no ls")
        return self.ls(path).entries or []

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[GrepMatch] | str:
        """Seed name of `grep`: the matches alone, or the error as a string."""
        if not _overridden(self, "grep"):
            raise NotImplementedError(f"{type(self).__name__} has no grep")
        result = self.grep(pattern, path, glob)
        return result.error if result.error is not None else (result.matches or [])

    def glob_info(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """Seed name of `glob`: the matches alone, empty after an error."""
        if not _overridden(self, "glob"):
            raise NotImplementedError(f"{type(self).__name__} has no glob")
        return self.glob(pattern, path).matches or []

    if TYPE_CHECKING:
        # Made below, once, from the methods above.
        async def als(self, path: str) -> LsResult: ...
        async def aread(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult: ...
        async def awrite(self, file_path: str, content: str) -> WriteResult: ...
        async def aedit(
            self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
        ) -> EditResult: ...
        async def agrep(
            self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
        ) -> GrepResult: ...
        async def aglob(self, pattern: str, path: str | None = None) -> GlobResult: ...
        async def adelete(self, file_path: str) -> DeleteResult: ...
        async def amove(self, source: str, destination: str) -> MoveResult: ...
        async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]: ...
        async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]: ...
        async def als_info(self, path: str) -> list[FileInfo]: ...
        async def agrep_raw(
            self, pattern: str, path: str | None = None, glob: str | None = None
        ) -> list[GrepMatch] | str: ...
        async def aglob_info(self, pattern: str, path: str = "/") -> list[FileInfo]: ...


class SandboxBackendProtocol(BackendProtocol):
    """A backend that can also run shell commands."""

    @property
    def id(self) -> str:
        """A name for this sandbox, unique while it lives."""
        raise NotImplementedError(f"{type(self).__name__} has no id")

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run `command` with `sh -c`; after `timeout` seconds it is ended and the exit code is 124."""
        raise NotImplementedError(f"{type(self).__name__} has no execute")

    if TYPE_CHECKING:

        async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse: ...


BackendFactory: TypeAlias = Callable[[Any], BackendProtocol]
"""Called with a runtime, gives a backend; a backend class is one too."""

BackendLike: TypeAlias = BackendProtocol | BackendFactory


def _async_twin(name: str) -> Callable[..., Any]:
    async def twin(self: BackendProtocol, *args: Any, **kwargs: Any) -> Any:
        import anyio.to_thread

        return await anyio.to_thread.run_sync(functools.partial(getattr(self, name), *args, **kwargs))

    twin.__name__ = f"a{name}"
    twin.__doc__ = f"`{name}` in a worker thread; awaitable under asyncio and under trio."
    return twin


AGENT_VERBS = (
    "ls", "read", "write", "edit", "grep", "glob", "delete", "move", "upload_files", "download_files",
)  # fmt: skip
SEED_VERBS = ("ls_info", "grep_raw", "glob_info")

for _name in AGENT_VERBS + SEED_VERBS:
    setattr(BackendProtocol, f"a{_name}", _async_twin(_name))
setattr(SandboxBackendProtocol, "aexecute", _async_twin("execute"))  # noqa: B010 - keeps mypy's view of the stubs

# --------------------------------------------------------------------------------------------------------------
# Records of the kernel face
# --------------------------------------------------------------------------------------------------------------

ROOT_NODE = 1
"""The node of every volume's root directory."""

MAX_NODE = (1 << 48) - 1
"""The largest node a volume may choose; the mount keeps the 16 bits above it for the route."""

NAME_MAX_BYTES = 255
"""Longest name of a directory entry (Linux NAME_MAX)."""

BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the volume's own block size."""

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


class Attr:
    """What `stat` shows of a node. A volume may hand out the object it keeps: read it at once, never change it."""

    __slots__ = (
        "atime_ns", "blocks", "ctime_ns", "gid", "mode", "mtime_ns", "nlink", "node", "rdev", "size", "uid",
    )  # fmt: skip

    def __init__(
        self,
        node: int,
        mode: int,
        *,
        nlink: int = 1,
        uid: int = 0,
        gid: int = 0,
        rdev: int = 0,
        size: int = 0,
        blocks: int = 0,
        atime_ns: int = 0,
        mtime_ns: int = 0,
        ctime_ns: int = 0,
    ) -> None:
        self.node = node
        self.mode = mode  # type and permission bits, as st_mode
        self.nlink = nlink
        self.uid = uid
        self.gid = gid
        self.rdev = rdev
        self.size = size  # bytes
        self.blocks = blocks  # of BLOCK_BYTES
        self.atime_ns = atime_ns  # since the epoch; negative before 1970
        self.mtime_ns = mtime_ns
        self.ctime_ns = ctime_ns

    @property
    def is_dir(self) -> bool:
        return stat_module.S_ISDIR(self.mode)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in sorted(self.__slots__))
        return f"Attr({fields})"


class AttrChanges(NamedTuple):
    """What `setattr` is to change; None leaves a field alone. `mode` holds permission bits only."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None


class Caller(NamedTuple):
    """Whose request this is: what a new file's owner and group come from. `umask` is applied already."""

    uid: int
    gid: int
    pid: int = 0


class Change(NamedTuple):
    """Something another face or another host changed, for the caches above the volume.

    `node` is set when its data or attributes changed; `parent` and `name` when that directory entry did. A change
    with neither (`Change()`) means anything may have changed.
    """

    node: int | None = None
    parent: int | None = None
    name: bytes | None = None


class StatFs(NamedTuple):
    """What `statvfs` shows. Counts of blocks are in units of `block_bytes`."""

    block_bytes: int
    blocks: int
    blocks_free: int
    files: int
    files_free: int
    name_max: int = NAME_MAX_BYTES


@dataclass(frozen=True)
class Features:
    """What a volume can do. `fusebackend status` prints it for each route."""

    random_writes: bool = True
    """Writes go where they are told; False means whole files are buffered and stored when flushed."""
    rename: bool = True
    """Rename is atomic, also over an existing target."""
    links: bool = True
    symlinks: bool = True
    special_files: bool = True
    """FIFOs, sockets and device nodes."""
    xattrs: bool = True
    persistent_modes: bool = True
    """Modes, owners and times are kept."""
    change_feed: bool = True
    """Every change is made through this process or told to `subscribe`, so caches never grow stale."""
    durable: bool = True
    """What `fsync` returned for outlives the process."""
    read_only: bool = False
    blocking: bool = False
    """Calls may wait for a network or a slow disk: the mount makes them in threads, under a deadline."""


# --------------------------------------------------------------------------------------------------------------
# The kernel face
# --------------------------------------------------------------------------------------------------------------


class Volume(abc.ABC):
    """A tree of nodes, in the kernel's words.

    Contract:
    - Every method raises `OSError` with the errno POSIX gives it, and nothing else that is not a bug.
    - Names are bytes without `/` and NUL. The mount checks that they are 1 to 255 bytes and not `.` or `..`;
      a volume may rely on that, and on permissions having been checked (the kernel does, by `default_permissions`).
    - A node is an integer from 1 to `MAX_NODE`, the root is `ROOT_NODE`. It is valid while it has a name, and even
      without one from `hold` to `forget` and from `open` to `release`; it is never used again in a session.
    - Methods may be called from any thread; each is atomic. `lock` is held by each of them, is re-entrant, and may
      be held from outside to make several calls one.
    - `read`, `write` and the like take a node that `open` was called for.
    """

    features: Features = Features()

    lock: AbstractContextManager[Any]

    # -- names -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def lookup(self, parent: int, name: bytes) -> Attr:
        """The node that `name` is in the directory `parent`. ENOENT, ENOTDIR."""

    @abc.abstractmethod
    def readdir(self, node: int, after: bytes, limit: int) -> Sequence[tuple[bytes, Attr]]:
        """Up to `limit` entries, without `.` and `..`, whose names are greater than `after`, in the order of names.

        An empty answer means the end. Entries that exist for the whole of a listing are seen exactly once, whatever
        else comes and goes; an entry that is gone is never returned. `after=b""` starts a listing.
        """

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """Make a regular file, FIFO, socket or device. EEXIST, ENOSPC."""
        raise unsupported("mknod")

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attr:
        """Make a directory. EEXIST, EMLINK."""
        raise unsupported("mkdir")

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attr:
        """Make a symbolic link to `target` (any bytes). EEXIST."""
        raise unsupported("symlink")

    def link(self, node: int, new_parent: int, new_name: bytes) -> Attr:
        """Give a node another name. EEXIST, EPERM for a directory, EMLINK, ENOENT when its last name is gone."""
        raise unsupported("link")

    def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name of something that is not a directory. ENOENT, EISDIR."""
        raise unsupported("unlink")

    def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory. ENOENT, ENOTDIR, ENOTEMPTY."""
        raise unsupported("rmdir")

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        """Move a name, replacing what is there. `flags` is 0, RENAME_NOREPLACE or RENAME_EXCHANGE.

        ENOENT, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL (a directory into itself, an unknown flag).
        """
        raise unsupported("rename")

    # -- attributes --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def getattr(self, node: int) -> Attr:
        """The attributes of a node. ENOENT or ESTALE for one that is not held."""

    def setattr(self, node: int, changes: AttrChanges) -> Attr:
        """Change attributes and size; a new size truncates or extends with zeros."""
        raise unsupported("setattr")

    def readlink(self, node: int) -> bytes:
        """The target of a symbolic link. EINVAL for anything else."""
        raise unsupported("readlink")

    def getxattr(self, node: int, name: bytes) -> bytes:
        """An extended attribute. ENODATA when there is none of that name."""
        raise unsupported("getxattr")

    def setxattr(self, node: int, name: bytes, value: bytes) -> None:
        """Set an extended attribute (the kernel has checked XATTR_CREATE and XATTR_REPLACE)."""
        raise unsupported("setxattr")

    def listxattr(self, node: int) -> Sequence[bytes]:
        """Names of the extended attributes of a node."""
        return ()

    def removexattr(self, node: int, name: bytes) -> None:
        """Remove an extended attribute. ENODATA."""
        raise unsupported("removexattr")

    # -- data --------------------------------------------------------------------------------------------------

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Attr:
        """`mknod` of a regular file and `open`, in one step. EEXIST."""
        attr = self.mknod(parent, name, stat_module.S_IFREG | stat_module.S_IMODE(mode), 0, caller)
        self.open(attr.node, flags)
        return attr

    def open(self, node: int, flags: int) -> None:
        """Note one more open handle with these `open(2)` flags. `O_TRUNC` has been done by `setattr`."""

    @abc.abstractmethod
    def read(self, node: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""

    def write(self, node: int, offset: int, data: bytes) -> int:
        """Write all of `data` at `offset`; returns its length."""
        raise unsupported("write")

    def flush(self, node: int) -> None:
        """A handle is being closed: report errors of deferred writes. Only called when writes are not random."""

    def fsync(self, node: int, datasync: bool = False) -> None:
        """Return when everything written to `node`, and its names, is durable."""

    def release(self, node: int, flags: int) -> None:
        """One handle that was opened with `flags` is closed."""

    # -- life --------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def statfs(self) -> StatFs:
        """Size and free space."""

    def hold(self, node: int) -> None:
        """The kernel knows this node from now on: keep its number, and its data even without a name."""

    def forget(self, nodes: Iterable[int]) -> None:
        """The kernel knows these nodes no longer: what has no name left can go, and numbers need not be stable."""

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Tell `callback` of changes not made through the kernel face; returns what ends that.

        Called after each change, in the thread that made it, with no lock held.
        """
        return lambda: None

    def sync(self) -> None:
        """Make everything durable."""

    def close(self) -> None:
        """Make everything durable and let go of files and connections. Nothing may be called afterwards."""


def unsupported(what: str) -> OSError:
    """The error of an operation that a volume can't do, ever: ENOTSUP, as POSIX says."""
    import errno
    import os

    return OSError(errno.ENOTSUP, f"{os.strerror(errno.ENOTSUP)}: {what}")
