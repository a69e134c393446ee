"""The agent face: `BackendProtocol`, `SandboxBackendProtocol`, and the records they answer with.

Names follow deepagents 0.7; the names of the seeds (`ls_info`, `grep_raw`, `glob_info`) are working aliases,
in both directions: a backend that defines only the old name answers to the new one as well.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

from fusebackend.base.numbering import EMPTY_REMINDER, NO_LINES_REMINDER, number_lines
from fusebackend.protocol.registered import register_all, registered_with

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
    read_only: NotRequired[bool]  # it can never be written


class ContextLine(TypedDict):
    """A line beside a match."""

    line: int
    text: str


class GrepMatch(TypedDict):
    """One matching line. `line` counts from 1; `text` is the line without its newline. Lines of the context are there
    if they were asked for (`FilesystemBackend.grep`), without those that match themselves."""

    path: str
    line: int
    text: str
    context_before: NotRequired[list[ContextLine]]
    context_after: NotRequired[list[ContextLine]]


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

    Raises:
        ValueError: the window makes no sense (deepagents refuses the same): a reader that went on at a wrong
            `next_offset` would miss lines.
    """

    error: str | None = None
    file_data: FileData | None = None
    total_lines: int | None = None
    start_line: int | None = None
    end_line: int | None = None
    next_offset: int | None = None
    no_lines_requested: bool = False

    def __post_init__(self) -> None:
        window = (self.start_line, self.end_line, self.total_lines, self.next_offset)
        if window == (None, None, None, None):
            if self.no_lines_requested and self.error is not None:
                raise ValueError("ReadResult: no_lines_requested is no error")
            return
        if self.no_lines_requested:
            raise ValueError("ReadResult: there is no window where no lines were requested")
        start, end, total, following = window
        if start is None or end is None:
            raise ValueError(
                "ReadResult: start_line and end_line come together, and total_lines and next_offset with them"
            )
        if not 1 <= start <= end or (total is not None and total < end):
            raise ValueError(f"ReadResult: lines {start} to {end} of {total} are no window")
        if following is not None and following != end:
            raise ValueError(f"ReadResult: next_offset is {following} after line {end}")

    def __str__(self) -> str:
        """The text that the seeds' `read` returned: numbered lines, a reminder, `Error: …`, or base64 as it is."""
        if self.error is not None:
            return self.error if self.error.startswith("Error: ") else f"Error: {self.error}"
        if self.no_lines_requested:
            return NO_LINES_REMINDER
        content = self.file_data["content"] if self.file_data is not None else ""
        if self.start_line is None and not content.strip():
            return EMPTY_REMINDER
        if self.file_data is not None and self.file_data.get("encoding") == "base64":
            return content
        return number_lines(content.splitlines(), self.start_line or 1)

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
    """Matches sorted by path and line. `truncated` is True when a limit cut them short.

    `missing` says what was not searched: one of several backends that failed, or what a backend leaves out by rule, as
    the histories of threads; then `truncated` is not set for it.
    """

    error: str | None = None
    matches: list[GrepMatch] | None = None
    truncated: bool = False
    missing: str | None = None


@dataclass
class GlobResult:
    """Matching regular files sorted by path. `truncation_reason` is `budget`, `unreadable` or `transport`; `missing`
    is as in `GrepResult`."""

    error: str | None = None
    matches: list[FileInfo] | None = None
    truncated: bool = False
    truncation_reason: str | None = None
    missing: str | None = None


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


@registered_with("deepagents.backends.protocol", "BackendProtocol")
class BackendProtocol(abc.ABC):
    """An agent's files. Paths are absolute strings that start with `/`; results are records, never exceptions.

    There are no abstract methods: a backend implements what it can, and the rest raises `NotImplementedError`,
    which callers such as `CompositeBackend` turn into an error record. `ls`, `grep` and `glob` fall back on the
    seeds' `ls_info`, `grep_raw` and `glob_info` where only those are defined, and the other way round.

    deepagents' `isinstance` takes it for its own `BackendProtocol`, see `registered.py`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """A verb with parameters of its own has an `a…` form that shows them."""
        super().__init_subclass__(**options)
        for name, verb in list(vars(cls).items()):
            inherited: Any = getattr(cls, f"a{name}", None)
            if not getattr(inherited, "is_twin", False) or f"a{name}" in vars(cls) or not inspect.isfunction(verb):
                continue
            if list(inspect.signature(verb).parameters) != list(inspect.signature(inherited).parameters):
                setattr(cls, f"a{name}", _async_twin(verb))

    if not TYPE_CHECKING:

        @property
        def __class__(self):
            """The class, as always; `isinstance` asks for it."""
            register_all()
            return type(self)

    def __repr__(self) -> str:
        where = self._where()
        return f"<{type(self).__name__} of {where}>" if where else f"<{type(self).__name__}>"

    def _where(self) -> str:
        """Where the files are, for `repr`: a path, a bucket, prefixes. Never a password."""
        return ""

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
            glob: only files whose path (relative to `path`) matches; rules in `base/globs.py`.
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
        """Find regular files below `path` (None means `/`) by a glob pattern; rules in `base/globs.py`."""
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


@registered_with("deepagents.backends.protocol", "SandboxBackendProtocol")
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


def _with_max_count(grep: Callable[..., Any]) -> Callable[..., Any]:
    """A `grep` that takes `max_count`. One of a backend from before deepagents 0.7 does not: its answer is cut."""
    known = inspect.signature(grep).parameters.values()
    if any(one.name == "max_count" or one.kind is inspect.Parameter.VAR_KEYWORD for one in known):
        return grep

    def cut(*args: Any, max_count: int | None = None, **kwargs: Any) -> Any:
        result = grep(*args, **kwargs)
        if max_count is None or not getattr(result, "matches", None) or len(result.matches) <= max_count:
            return result
        return replace(result, matches=result.matches[: max(0, max_count)], truncated=True)

    return cut


def _async_twin(verb: Callable[..., Any]) -> Callable[..., Any]:
    name = verb.__name__

    @functools.wraps(verb)
    async def twin(self: BackendProtocol, *args: Any, **kwargs: Any) -> Any:
        from fusebackend.base.awaiting import aside

        own = _with_max_count(self.grep) if name == "grep" else getattr(self, name)
        return await aside(self, name, functools.partial(own, *args, **kwargs))

    twin.is_twin = True  # type: ignore[attr-defined]
    twin.__name__ = f"a{name}"
    twin.__qualname__ = f"{verb.__qualname__.rpartition('.')[0]}.a{name}"
    twin.__doc__ = f"""{verb.__doc__}

        Awaitable under asyncio and under trio. Cancelled, it ends at once: what had not begun never does, a search or
        a command is ended, and a change that had begun is carried out (`fusebackend.base.awaiting`).
        """
    return twin


AGENT_VERBS = (
    "ls", "read", "write", "edit", "grep", "glob", "delete", "move", "upload_files", "download_files",
)  # fmt: skip
SEED_VERBS = ("ls_info", "grep_raw", "glob_info")

for _name in AGENT_VERBS + SEED_VERBS:
    setattr(BackendProtocol, f"a{_name}", _async_twin(getattr(BackendProtocol, _name)))
SandboxBackendProtocol.aexecute = _async_twin(SandboxBackendProtocol.execute)  # type: ignore[method-assign]
