"""The agent face: `BackendProtocol`, and `SandboxBackendProtocol` for backends that run commands.

Names follow deepagents 0.7; the names of the seeds (`ls_info`, `grep_raw`, `glob_info`) are working aliases,
in both directions: a backend that defines only the old name answers to the new one as well.
"""

# The decorator makes the bodies of verbs that a backend may lack.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from fusebackend.protocol.records import (
    READ_LIMIT_LINES,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    MoveResult,
    ReadResult,
    WriteResult,
)
from fusebackend.protocol.registered import registered_with
from fusebackend.protocol.verbs import AGENT_VERBS, SEED_VERBS

if TYPE_CHECKING:
    from fusebackend.protocol.awaited import AwaitedCommands, AwaitedFiles
else:  # their `a…` forms are made below, once
    AwaitedFiles, AwaitedCommands = abc.ABC, object

__all__ = [
    "BackendFactory", "BackendLike", "BackendProtocol", "OnExists", "SandboxBackendProtocol", "checked_on_exists",
]  # fmt: skip


F = TypeVar("F", bound=Callable[..., Any])

OnExists: TypeAlias = Literal["error", "replace"]
"""How `write` treats an existing file: as an error (the seeds), or it replaces it (deepagents 0.7)."""


def checked_on_exists(value: OnExists) -> OnExists:
    """Return an `OnExists`, or raise ValueError for another value."""
    if value not in get_args(OnExists):
        raise ValueError(f"on_exists must be 'error' or 'replace', not {value!r}")
    return value


def _defined(backend: object, name: str, verb: str) -> Callable[..., Any]:
    """Return the method of this name, which the backend's class has to define itself: the default is by the other name.

    Raises:
        NotImplementedError: it inherits the default, so it has no such verb by either name.
    """
    if getattr(type(backend), name) is getattr(BackendProtocol, name):
        raise NotImplementedError(f"{type(backend).__name__} has no {verb}")
    method: Callable[..., Any] = getattr(backend, name)
    return method


def absent(verb: F) -> F:
    """Decorate the declaration of a verb: the class answers that it has no such verb."""

    @functools.wraps(verb)
    def refuse(self: object, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no {verb.__name__}")

    return refuse  # type: ignore[return-value]


@registered_with("deepagents.backends.protocol", "BackendProtocol")
class BackendProtocol(AwaitedFiles):
    """An agent's files. Paths are absolute strings that start with `/`; results are records, never exceptions.

    There are no abstract methods: a backend implements what it can, and the rest raises `NotImplementedError`,
    which callers such as `CompositeBackend` turn into an error record. `ls`, `grep` and `glob` fall back on the
    seeds' `ls_info`, `grep_raw` and `glob_info` where only those are defined, and the other way round.

    deepagents' `isinstance` takes it for its own `BackendProtocol`, see `registered.py`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Make the `a…` form of each verb that has parameters of its own, so that its signature shows them."""
        super().__init_subclass__(**options)
        for name, verb in list(vars(cls).items()):
            inherited: Any = getattr(cls, f"a{name}", None)
            if not getattr(inherited, "is_twin", False) or f"a{name}" in vars(cls) or not inspect.isfunction(verb):
                continue
            if list(inspect.signature(verb).parameters) != list(inspect.signature(inherited).parameters):
                setattr(cls, f"a{name}", async_twin(verb))

    def __repr__(self) -> str:
        where = self._where()
        return f"<{type(self).__name__} of {where}>" if where else f"<{type(self).__name__}>"

    def _where(self) -> str:
        """Where the files are, for `repr`: a path, a bucket, prefixes. Never a password."""
        return ""

    # Asked by a composite.

    @property
    def in_graph(self) -> bool:
        """True if files may be in the state of a running LangGraph graph."""
        return False

    @property
    def can_execute(self) -> bool:
        """True if the backend runs commands."""
        return callable(getattr(self, "execute", None))

    def beside(self, other: Any, prefix: str) -> BackendProtocol:
        """Return this backend as a route at `prefix` of a composite whose default is `other`."""
        return self

    def apply_update(self, update: Mapping[str, Any]) -> bool:
        """Merge a `files_update` with paths of this backend into its state. False: it has no state of its own."""
        return False

    def ls(self, path: str) -> LsResult:
        """List the direct children of the directory `path`, sorted by path; directories end with `/`."""
        return LsResult(entries=_defined(self, "ls_info", "ls")(path))

    @absent
    def read(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult:
        """Read up to `limit` lines from line `offset` (counted from 0; negative means 0). A binary file comes whole, as
        base64."""

    @absent
    def write(
        self, file_path: str, content: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> WriteResult:
        """Create a file and its missing parents. An existing file is an error unless `on_exists="replace"`.

        Args:
            if_version: replace the file, if this is its version (`read`, `ls`, `download_files` give it); here and
                below. A lost race is the error `changed`, with the present version; nothing is changed then.
            if_absent: only if nothing is there.
        """

    @absent
    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_version: str | None = None,
    ) -> EditResult:
        """Replace an exact string, which must occur once unless `replace_all`."""

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
        raw: list[GrepMatch] | str = _defined(self, "grep_raw", "grep")(pattern, path, glob)
        if isinstance(raw, str):
            return GrepResult(error=raw)
        matches = sorted(raw, key=lambda match: (match["path"], match["line"]))
        cut = max_count is not None and len(matches) > max_count
        return GrepResult(matches=matches[:max_count], truncated=cut)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find regular files below `path` (None means `/`) by a glob pattern; rules in `base/globs.py`."""
        return GlobResult(matches=_defined(self, "glob_info", "glob")(pattern, path or "/"))

    @absent
    def delete(self, file_path: str, *, if_version: str | None = None) -> DeleteResult:
        """Delete a file, or a directory with all below it."""

    @absent
    def move(
        self, source: str, destination: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> MoveResult:
        """Rename a file or directory, atomically; an existing destination is an error, with `if_absent` it is
        `changed`. `if_version` is of the source."""

    @absent
    def upload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]:
        """Store bytes at paths, replacing what is there. One response per item, in order; items fail singly.

        Args:
            if_version, if_absent: as of `write`, a list with an item for each file.

        Raises:
            ValueError: a list has another length.
        """

    @absent
    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch the bytes of files. One response per item, in order; items fail singly."""

    # Where paths lead.

    def real_paths(self, wanted: list[str]) -> list[str | None]:
        """Return where paths lead when every symbolic link on them is followed, as the other verbs follow them.

        None for a path that leads nowhere or out of its backend. An absent name has a path as well: what `write` would
        make. A backend without links gives the paths themselves.
        """
        return list(wanted)

    # The seeds' names.

    def ls_info(self, path: str) -> list[FileInfo]:
        """Seed name of `ls`: the entries alone, empty after an error."""
        return _defined(self, "ls", "ls")(path).entries or []

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[GrepMatch] | str:
        """Seed name of `grep`: the matches alone, or the error as a string."""
        result: GrepResult = _defined(self, "grep", "grep")(pattern, path, glob)
        return result.error if result.error is not None else (result.matches or [])

    def glob_info(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """Seed name of `glob`: the matches alone, empty after an error."""
        return _defined(self, "glob", "glob")(pattern, path).matches or []


@registered_with("deepagents.backends.protocol", "SandboxBackendProtocol")
class SandboxBackendProtocol(BackendProtocol, AwaitedCommands):
    """A backend that can also run shell commands."""

    @property
    def id(self) -> str:
        """A name for this sandbox, unique while it lives."""
        raise NotImplementedError(f"{type(self).__name__} has no id")

    @absent
    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run `command` with `sh -c`; after `timeout` seconds it is ended and the exit code is 124."""


BackendFactory: TypeAlias = Callable[[Any], BackendProtocol]
"""A function or class that is called with a runtime and returns a backend."""

BackendLike: TypeAlias = BackendProtocol | BackendFactory


def _with_max_count(grep: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `grep` that takes `max_count`: for one that does not (before deepagents 0.7), the answer is cut."""
    known = inspect.signature(grep).parameters.values()
    if any(one.name == "max_count" or one.kind is inspect.Parameter.VAR_KEYWORD for one in known):
        return grep

    def cut(*args: Any, max_count: int | None = None, **kwargs: Any) -> Any:
        result = grep(*args, **kwargs)
        if max_count is None or not getattr(result, "matches", None) or len(result.matches) <= max_count:
            return result
        return replace(result, matches=result.matches[: max(0, max_count)], truncated=True)

    return cut


def async_twin(verb: Callable[..., Any]) -> Callable[..., Any]:
    name = verb.__name__

    @functools.wraps(verb)
    async def twin(self: BackendProtocol, *args: Any, **kwargs: Any) -> Any:
        from fusebackend.base.awaiting import aside

        own = _with_max_count(self.grep) if name == "grep" else getattr(self, name)
        return await aside(self, name, functools.partial(own, *args, **kwargs))

    twin.is_twin = True  # type: ignore[attr-defined]
    vars(twin).pop("__isabstractmethod__", None)  # of the verb: the twin is there
    twin.__name__ = f"a{name}"
    twin.__qualname__ = f"{verb.__qualname__.rpartition('.')[0]}.a{name}"
    twin.__doc__ = f"""{verb.__doc__}

        Awaitable under asyncio and under trio. A cancelled call returns at once: a search or a command is ended, a
        change that has begun is carried out, and a call that waited for its turn never begins (`base/awaiting.py`).
        """
    return twin


for _name in AGENT_VERBS + SEED_VERBS:
    setattr(BackendProtocol, f"a{_name}", async_twin(getattr(BackendProtocol, _name)))
SandboxBackendProtocol.aexecute = async_twin(SandboxBackendProtocol.execute)  # type: ignore[method-assign]
